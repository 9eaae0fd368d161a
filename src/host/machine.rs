use std::io;
use std::path::{Path, PathBuf};

use super::{Pid, Process, ProcessTable};

/// The machine below one root directory.
#[derive(Clone, Debug)]
pub struct Host {
    pub(super) root: PathBuf,
}

impl Host {
    /// The machine whose `/proc` lies under `root`.
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// This boot's id: it tells state of an earlier boot from state of this one.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn boot_id(&self) -> io::Result<String> {
        let id = std::fs::read_to_string(self.root.join("proc/sys/kernel/random/boot_id"))?;
        Ok(id.trim().to_owned())
    }

    /// Every process that can be seen now.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn processes(&self) -> io::Result<ProcessTable> {
        ProcessTable::read(&self.root.join("proc"))
    }

    /// Whether `/proc` shows something of a process, be it a zombie.
    pub(super) fn shows(&self, pid: Pid) -> bool {
        std::fs::read(self.root.join(format!("proc/{pid}/stat"))).is_ok()
    }

    /// One process, if it can be seen.
    pub fn process(&self, pid: Pid) -> Option<Process> {
        Process::read(&self.root.join("proc"), pid)
    }
}
