//! Door 3: the rest of the machine: processes, users, files, child programs, locks, and the two programs
//! that free a GPU of those who hold it: `systemctl` and `nvidia-smi`.
//!
//! All its paths hang under one root, so that a test can give it another machine.

mod child;
mod directory;
mod environment;
mod files;
mod held;
mod holders;
mod interrupt;
mod limits;
mod lock;
mod nvidia_smi;
mod pool;
mod process;
#[cfg(test)]
mod programs;
mod reach;
mod signals;
mod spawn;
mod text;
mod units;
mod user;

use std::io;
use std::path::{Path, PathBuf};

use child::plain_command;
pub use child::{Output, RunError, run};
pub use directory::{Directory, claimed};
pub use environment::{Environment, EnvironmentError, Home, MpsPrograms};
pub use files::{in_path, read_text};
pub use held::Held;
pub use holders::{Holder, Holders};
pub use interrupt::{Change, Interrupt, Phase};
pub use limits::{
    FEWEST_FILES, LAUNCH, Limits, LimitsError, TooFewFiles, TooLittleMemory, open_files,
    raise_memory, raise_open_files, raise_stack,
};
pub use lock::{Lock, LockError};
pub use nvidia_smi::{NvidiaSmi, ResetError};
pub use pool::{Job, Pool};
pub use process::{Environ, Pid, Process, ProcessTable, StartTime};
pub use reach::Reader;
pub use text::{bounded, printable, steers};
pub use units::{Unit, Units, UnitsError};
pub use user::{Account, Uid, caller, group_name, group_named, names_in, user_name};

/// What to do where the system starts no more threads or processes.
pub const MORE_PROCESSES: &str =
    "allow this user more processes (ulimit -u, pids.max of the cgroup), or end some";

/// The machine below one root directory.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
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
    fn shows(&self, pid: Pid) -> bool {
        std::fs::read(self.root.join(format!("proc/{pid}/stat"))).is_ok()
    }

    /// One process, if it can be seen.
    pub fn process(&self, pid: Pid) -> Option<Process> {
        Process::read(&self.root.join("proc"), pid)
    }
}
