//! The device files of MIG instances.

use std::collections::BTreeMap;
use std::io;

use super::Host;

/// The minor numbers of the capability files of MIG instances, by the names that the driver gives them.
#[derive(Debug)]
pub struct Capabilities {
    minors: BTreeMap<String, u32>,
}

impl Host {
    /// Reads the driver's table of capability files.
    pub fn capabilities(&self) -> io::Result<Capabilities> {
        let text = std::fs::read_to_string(self.root.join("proc/driver/nvidia-caps/mig-minors"))?;
        Ok(Capabilities::parse(&text))
    }
}

impl Capabilities {
    fn parse(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| {
            let (name, minor) = line.trim().rsplit_once(' ')?;
            Some((name.to_owned(), minor.parse().ok()?))
        });
        Self {
            minors: lines.collect(),
        }
    }

    /// Returns the files of a GPU instance and of a compute instance of the GPU with this minor number.
    pub fn files(&self, gpu: u32, gpu_instance: u32, compute: u32) -> Option<[String; 2]> {
        let instance = format!("gpu{gpu}/gi{gpu_instance}");
        let file = |name: String| {
            let minor = self.minors.get(&name)?;
            Some(format!("/dev/nvidia-caps/nvidia-cap{minor}"))
        };
        let of_compute = file(format!("{instance}/ci{compute}/access"))?;
        Some([file(format!("{instance}/access"))?, of_compute])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first lines of the file on an H200.
    const TABLE: &str =
        "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\ngpu0/gi0/ci1/access 5\n";

    #[test]
    fn files_are_found_by_the_numbers_of_instances() {
        let table = Capabilities::parse(TABLE);
        let files = table.files(0, 0, 1).unwrap();
        assert_eq!(
            files,
            [
                "/dev/nvidia-caps/nvidia-cap3",
                "/dev/nvidia-caps/nvidia-cap5"
            ]
        );
        assert_eq!(table.files(0, 0, 2), None);
        assert_eq!(table.files(1, 0, 0), None);
    }
}
