//! The CPUs near a GPU, as the kernel reports them.

use std::fs;
use std::io;

use super::Host;
use super::files::field;

impl Host {
    /// Returns the CPUs that are local to the GPU with this UUID. Fails with the path of what is missing.
    pub fn cpus_near(&self, gpu: &str) -> io::Result<Vec<usize>> {
        let address = self.pci_address(gpu)?;
        let path = self
            .root
            .join("sys/bus/pci/devices")
            .join(&address)
            .join("local_cpulist");
        let text = fs::read_to_string(&path).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
        let cpus = cpu_list(text.trim());
        cpus.filter(|cpus| !cpus.is_empty()).ok_or_else(|| {
            let what = format!("{} has {:?}", path.display(), text.trim());
            io::Error::new(io::ErrorKind::InvalidData, what)
        })
    }

    /// Returns the PCI address of a GPU, such as `0000:17:00.0`, from the driver's files in `/proc`.
    fn pci_address(&self, gpu: &str) -> io::Result<String> {
        let gpus = self.root.join("proc/driver/nvidia/gpus");
        let missing = |what: String| io::Error::new(io::ErrorKind::NotFound, what);
        let entries =
            fs::read_dir(&gpus).map_err(|error| missing(format!("{}: {error}", gpus.display())))?;
        let is_it = |entry: &fs::DirEntry| {
            let uuid = field(entry.path().join("information"), "GPU UUID:");
            uuid.is_some_and(|uuid| uuid == gpu)
        };
        let found = entries.flatten().find(is_it);
        let name = found.and_then(|entry| entry.file_name().into_string().ok());
        name.ok_or_else(|| missing(format!("{} does not list {gpu}", gpus.display())))
    }
}

/// Reads a list in the kernel's form `0-7,16`.
fn cpu_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::cpu_list;

    #[test]
    fn the_kernels_lists_are_read() {
        assert_eq!(cpu_list("0-2,8"), Some(vec![0, 1, 2, 8]));
        assert_eq!(cpu_list("5"), Some(vec![5]));
        assert_eq!(cpu_list(""), Some(vec![]));
        assert_eq!(cpu_list("x"), None);
    }
}
