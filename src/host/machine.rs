use std::io;
use std::path::{Path, PathBuf};

use super::{Pid, Process, ProcessTable};

/// The system below one root directory.
#[derive(Clone, Debug)]
pub struct Host {
    pub(super) root: PathBuf,
}

impl Host {
    /// Returns the system whose `/proc` is below `root`.
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// Returns the id of this boot, which identifies state of an earlier boot.
    pub fn boot_id(&self) -> io::Result<String> {
        let id = std::fs::read_to_string(self.root.join("proc/sys/kernel/random/boot_id"))?;
        Ok(id.trim().to_owned())
    }

    /// Returns all visible processes.
    pub fn processes(&self) -> io::Result<ProcessTable> {
        ProcessTable::read(&self.root.join("proc"))
    }

    /// True if `/proc` has an entry for a process, even for a zombie.
    pub(super) fn shows(&self, pid: Pid) -> bool {
        std::fs::read(self.root.join(format!("proc/{pid}/stat"))).is_ok()
    }

    /// Returns a process if it is visible.
    pub fn process(&self, pid: Pid) -> Option<Process> {
        Process::read(&self.root.join("proc"), pid)
    }
}
