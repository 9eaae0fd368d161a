//! `selftest.json`: the GPUs that a self-test uses, and how they were before. It outlasts the self-test and the boot.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::run_dir::{PUBLIC, read, write};
use crate::host::{Directory, Host, Pid, StartTime, only_root_can_change};

/// The name of the file, in the state directory.
const FILE: &str = "selftest.json";

/// The GPUs that a self-test uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SelftestRecord {
    /// The directory of the self-test's daemons, logs and history.
    pub directory: PathBuf,
    pub pid: Pid,
    /// Identifies the process of the self-test together with the pid.
    pub start_time: StartTime,
    pub gpus: Vec<GpuUnderTest>,
    /// True if GPUs may be reset where their MIG mode needs that.
    pub may_reset: bool,
    /// True if monitoring services may be stopped meanwhile.
    pub may_stop_holders: bool,
}

/// A GPU that a self-test uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GpuUnderTest {
    pub uuid: String,
    pub index: u32,
    /// The profile that makes the GPU as it was.
    pub before: String,
}

impl SelftestRecord {
    /// True if the process of the self-test has exited.
    pub fn is_of_the_dead(&self, host: &Host) -> bool {
        let writer = host.process(self.pid);
        writer.is_none_or(|writer| writer.started != self.start_time)
    }

    /// Returns the path of the file in a state directory.
    pub fn path(state_dir: &Path) -> PathBuf {
        state_dir.join(FILE)
    }

    /// Reads the record in a state directory, which need not exist. Refuses one that another user than root and the caller
    /// can change: its profiles are applied.
    pub fn read(state_dir: &Path) -> io::Result<Option<Self>> {
        // No self-test writes into a directory that is not trusted, or cannot be made.
        let Ok(Some(opened)) = Directory::open_if_there(state_dir) else {
            return Ok(None);
        };
        let record = read(&opened, FILE)?;
        if record.is_some() {
            only_root_can_change(&Self::path(state_dir))?;
        }
        Ok(record)
    }

    /// Writes the record, so that it outlasts a crash of the machine.
    pub fn write(&self, state_dir: &Path) -> io::Result<()> {
        let opened = Directory::make(state_dir, 0o755)?;
        write(&opened, FILE, self, PUBLIC)?;
        match opened.open_file(FILE)? {
            Some(file) => file.sync_all(),
            None => Ok(()),
        }
    }

    /// Removes the record: the GPUs are as they were.
    pub fn remove(state_dir: &Path) -> io::Result<()> {
        Directory::open(state_dir)?.remove_file(FILE)
    }
}
