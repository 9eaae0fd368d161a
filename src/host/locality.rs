//! The CPUs near a GPU, as the kernel reports them.

use std::fs;
use std::io;

use super::Host;
use super::files::field;
use crate::settings::Cpus;

impl Host {
    /// Returns the CPUs that are local to the GPU with this UUID. Fails with the path of what is missing.
    pub fn cpus_near(&self, gpu: &str) -> io::Result<Cpus> {
        let address = self.pci_address(gpu)?;
        let path = self
            .root
            .join("sys/bus/pci/devices")
            .join(&address)
            .join("local_cpulist");
        let text = fs::read_to_string(&path).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
        text.trim().parse().map_err(|error: String| {
            let what = format!("{}: {error}", path.display());
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
