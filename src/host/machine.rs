use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use signal_hook::consts::{SIGCHLD, SIGXFSZ};
use signal_hook::flag;

use super::files::field;
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

    /// Handles SIGCHLD if it is ignored: a process that ignores it loses the exit status of its children. Handles SIGXFSZ,
    /// so that writing too large a file fails and the change is rolled back.
    ///
    /// The handlers do nothing. Programs that this process starts or becomes have the default actions again.
    pub fn reset_signals(&self) -> io::Result<()> {
        // Only if needed: a handler interrupts calls of the driver.
        if self.ignores(SIGCHLD) {
            flag::register(SIGCHLD, Arc::default())?;
        }
        flag::register(SIGXFSZ, Arc::default())?;
        Ok(())
    }

    /// True if this process ignores a signal, according to `/proc/self/status`.
    pub(super) fn ignores(&self, signal: i32) -> bool {
        let mask = field(self.root.join("proc/self/status"), "SigIgn:")
            .and_then(|mask| u64::from_str_radix(&mask, 16).ok());
        // Bit 0 is signal 1.
        mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
    }
}
