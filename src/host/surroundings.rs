//! Facts about the machine that the core needs: the kernel, the CPUs near a GPU, device files, containers.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::{Access, access};
use rustix::io::Errno;
use thiserror::Error;

use super::files::read_proc_field;
use super::{FileError, FileResult, Host, Pid, ProcessHandle, to_printable};
use crate::failure::Failure;
use crate::settings::Cpus;

/// The files by which container engines mark a container.
const CONTAINER_MARKS: [(&str, &str); 3] = [
    (".dockerenv", "docker"),
    ("run/.containerenv", "podman"),
    ("run/systemd/container", "systemd"),
];

/// True if this process may make entries in a directory.
pub fn may_write(directory: &Path) -> bool {
    access(directory, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

impl Host {
    /// Returns the engine whose container this is.
    pub fn container_engine(&self) -> Option<&'static str> {
        CONTAINER_MARKS
            .into_iter()
            .find(|(mark, _)| self.root.join(mark).exists())
            .map(|(_, engine)| engine)
    }

    /// Returns the names of units that systemd starts at boot: the entries of `*.wants` and `*.requires`.
    pub fn enabled_units(&self) -> Vec<String> {
        list_directory(&self.root.join("etc/systemd/system"))
            .into_iter()
            .filter(|(path, _)| {
                let kind = path.extension().and_then(OsStr::to_str);
                matches!(kind, Some("wants" | "requires"))
            })
            .flat_map(|(path, _)| list_directory(&path))
            .map(|(_, name)| to_printable(&name))
            .collect()
    }
}

/// Returns the paths and names of the entries of a directory whose names are text.
pub fn list_directory(directory: &Path) -> Vec<(PathBuf, String)> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.path(), entry.file_name().into_string().ok()?)))
        .collect()
}

impl Host {
    /// Returns a path of the system below the host's root.
    pub fn under_root(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns the device node of a capability, such as `/dev/nvidia-caps/nvidia-cap12`, by its file in
    /// `/proc/driver/nvidia/capabilities`; `None` if the driver has no such file.
    pub fn capability_node(&self, capability: &str) -> Option<PathBuf> {
        let directory = self.root.join("proc/driver/nvidia/capabilities");
        let minor: u32 = read_proc_field(directory.join(capability), "DeviceFileMinor:")?
            .parse()
            .ok()?;
        Some(PathBuf::from(format!("/dev/nvidia-caps/nvidia-cap{minor}")))
    }

    /// Returns the device nodes of a GPU instance and of a compute instance of the GPU with this minor number, by the
    /// driver's table; `None` if the table lacks one.
    pub fn capability_files(
        &self,
        gpu: u32,
        gpu_instance: u32,
        compute: u32,
    ) -> FileResult<Option<[String; 2]>> {
        let table = self.capability_table()?;
        Ok(capability_files(&table, gpu, gpu_instance, compute))
    }

    /// Returns the name of the capability whose device node has that number, such as `gpu0/gi1/ci0/access`.
    pub fn capability_name(&self, minor: u32) -> Option<String> {
        let table = self.capability_table().ok()?;
        table
            .lines()
            .filter_map(|line| line.split_once(' '))
            .find(|(_, number)| number.trim().parse() == Ok(minor))
            .map(|(name, _)| name.to_owned())
    }

    fn capability_table(&self) -> FileResult<String> {
        let path = self.root.join("proc/driver/nvidia-caps/mig-minors");
        Ok(fs::read_to_string(path)?)
    }
}

/// Each line of the table has the name of a capability and the minor number of its device node.
fn capability_files(table: &str, gpu: u32, gpu_instance: u32, compute: u32) -> Option<[String; 2]> {
    let instance = format!("gpu{gpu}/gi{gpu_instance}");
    let names = [
        format!("{instance}/access"),
        format!("{instance}/ci{compute}/access"),
    ];
    let [of_instance, of_compute] = names.map(|name| {
        table.lines().find_map(|line| {
            let minor: u32 = line.trim().strip_prefix(&name)?.trim().parse().ok()?;
            Some(format!("/dev/nvidia-caps/nvidia-cap{minor}"))
        })
    });
    Some([of_instance?, of_compute?])
}

/// The kernel lacks a call without which no process can be ended safely, and no child within a limit.
#[derive(Debug, Error)]
#[error("mig-mps needs Linux 5.3 or newer: pidfd_open failed: {0}")]
pub struct OldKernel(FileError);

impl Failure for OldKernel {
    fn hint(&self) -> Option<String> {
        let hint = match self.0.errno() {
            Some(Errno::PERM) => {
                "update the container engine, whose filter of system calls refuses this call"
            }
            _ => {
                "check the version of the kernel with `uname -r`; in a container, its filter of system calls may \
                 refuse the call"
            }
        };
        Some(hint.to_owned())
    }
}

/// Refuses a kernel before Linux 5.3.
pub fn check_kernel() -> Result<(), OldKernel> {
    match ProcessHandle::open(Pid(std::process::id())) {
        Err(error @ (Errno::NOSYS | Errno::PERM)) => Err(OldKernel(error.into())),
        _ => Ok(()),
    }
}

impl Host {
    /// Returns the CPUs that are local to one of the GPUs with these UUIDs. Fails with the path of what is missing.
    pub fn cpus_near(&self, gpus: &[String]) -> FileResult<Cpus> {
        let near = gpus.iter().map(|gpu| {
            let (path, text) = self.read_of_gpu(gpu, "local_cpulist")?;
            let invalid =
                |error: String| FileError::new(io::ErrorKind::InvalidData, error).at(&path);
            text.parse().map_err(invalid)
        });
        Ok(Cpus::union_of(near.collect::<FileResult<Vec<Cpus>>>()?))
    }

    /// Returns the NUMA node of the GPU with this UUID; `None` if the machine does not tell (-1), as with one node alone.
    pub fn numa_node_of(&self, gpu: &str) -> FileResult<Option<u32>> {
        let (_, text) = self.read_of_gpu(gpu, "numa_node")?;
        Ok(text.parse().ok())
    }

    /// Reads a file about a GPU's place in the machine.
    fn read_of_gpu(&self, gpu: &str, file: &str) -> FileResult<(PathBuf, String)> {
        let address = self.pci_address(gpu)?;
        let path = self
            .root
            .join(format!("sys/bus/pci/devices/{address}/{file}"));
        let text = fs::read_to_string(&path).map_err(|error| FileError::from(error).at(&path))?;
        Ok((path, text.trim().to_owned()))
    }

    /// Returns the PCI address of a GPU, such as `0000:17:00.0`, from the driver's files in `/proc`.
    pub fn pci_address(&self, gpu: &str) -> FileResult<String> {
        let directory = self.driver_directory(gpu)?;
        let address = directory.file_name().unwrap_or_default();
        Ok(address.to_string_lossy().into_owned())
    }

    /// Finds the driver's directory of the GPU with this UUID.
    fn driver_directory(&self, gpu: &str) -> FileResult<PathBuf> {
        let gpus = self.root.join("proc/driver/nvidia/gpus");
        fs::read_dir(&gpus)
            .map_err(|error| FileError::from(error).at(&gpus))?
            .flatten()
            .map(|entry| entry.path())
            .find(|directory| {
                let uuid = read_proc_field(directory.join("information"), "GPU UUID:");
                uuid.is_some_and(|uuid| uuid == gpu)
            })
            .ok_or_else(|| {
                let what = format!("{} does not list {gpu}", gpus.display());
                FileError::new(io::ErrorKind::NotFound, what)
            })
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
        let files = capability_files(TABLE, 0, 0, 1).unwrap();
        assert_eq!(
            files,
            [
                "/dev/nvidia-caps/nvidia-cap3",
                "/dev/nvidia-caps/nvidia-cap5"
            ]
        );
        assert_eq!(capability_files(TABLE, 0, 0, 2), None);
        assert_eq!(capability_files(TABLE, 1, 0, 0), None);
    }
}
