//! `selftest.json`: the GPUs that a self-test uses, and how they were before. It outlasts the self-test and the boot.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::run_dir::{PUBLIC_MODE, load_json, write_json};
use super::writer::Writer;
use crate::host::{Directory, FileResult, Host, check_trusted_program};

/// The name of the file, in the state directory.
const SELFTEST_FILE: &str = "selftest.json";

/// The GPUs that a self-test uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SelftestRecord {
    /// The directory of the self-test's daemons, logs and history.
    pub directory: PathBuf,
    #[serde(flatten)]
    pub writer: Writer,
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
    /// Returns the name of the machine whose GPUs these are, if that is another one: machines may share the directory. A machine
    /// without a lasting id, which gets one at each boot, is known by its name.
    pub fn other_machine(&self, host: &Host) -> Option<&str> {
        let machine = self.writer.machine.as_ref()?;
        (machine.name != host.this_machine().name).then_some(&machine.name)
    }

    /// Returns the path of the file in a state directory.
    pub fn path(state_dir: &Path) -> PathBuf {
        state_dir.join(SELFTEST_FILE)
    }

    /// Reads the record in a state directory, which need not exist. Refuses one that another user than root and the caller
    /// can change: its profiles are applied.
    pub fn load(state_dir: &Path) -> FileResult<Option<Self>> {
        // No self-test writes into a directory that is not trusted, or cannot be made.
        let Ok(Some(opened)) = Directory::open_if_there(state_dir) else {
            return Ok(None);
        };
        let record = load_json(&opened, SELFTEST_FILE)?;
        if record.is_some() {
            check_trusted_program(&Self::path(state_dir))?;
        }
        Ok(record)
    }

    /// Writes the record, so that it outlasts a crash of the machine.
    pub fn write(&self, state_dir: &Path) -> FileResult<()> {
        let opened = Directory::open_or_create(state_dir, 0o755)?;
        write_json(&opened, SELFTEST_FILE, self, PUBLIC_MODE)?;
        match opened.open_file(SELFTEST_FILE)? {
            Some(file) => Ok(file.sync_all()?),
            None => Ok(()),
        }
    }

    /// Removes the record: the GPUs are as they were.
    pub fn remove(state_dir: &Path) -> FileResult<()> {
        Directory::open(state_dir)?.remove_file(SELFTEST_FILE)
    }
}
