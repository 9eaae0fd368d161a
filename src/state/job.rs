//! The directory `jobs` of root's run directory: the jobs that `mig-mps job begin` has recorded.

use std::io::ErrorKind;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::run_dir::{PUBLIC_MODE, RunDir, load_json, write_json};
use crate::host::{Directory, FileError, FileResult, Process, Uid, is_job_name};

/// A job of a batch system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct JobRecord {
    pub id: String,
    pub user: Uid,
    /// The UUIDs of its devices.
    pub devices: Vec<String>,
    /// The path of its control group, as in `/proc/PID/cgroup`.
    pub control_group: String,
    pub boot_id: String,
}

impl JobRecord {
    /// Reads the records of this boot. What cannot be read names no program.
    pub fn load_all(run_dir: &RunDir, boot_id: &str) -> Vec<Self> {
        let Ok(Some(directory)) = Self::open(run_dir) else {
            return Vec::new();
        };
        directory
            .entry_names()
            .unwrap_or_default()
            .into_iter()
            .filter_map(|name| name.into_string().ok())
            .filter_map(|id| Self::load_in(&directory, &id).ok().flatten())
            .filter(|record| record.boot_id == boot_id)
            .collect()
    }

    /// Reads the record of a job. Fails with `InvalidData` for the record of another job in its place.
    pub fn load(run_dir: &RunDir, id: &str) -> FileResult<Option<Self>> {
        match Self::open(run_dir)? {
            Some(directory) => Self::load_in(&directory, id),
            None => Ok(None),
        }
    }

    fn load_in(directory: &Directory, id: &str) -> FileResult<Option<Self>> {
        let is_half_made = id.starts_with('.') || !is_job_name(id);
        let record = if is_half_made {
            None
        } else {
            load_json::<Self>(directory, id)?
        };
        match record {
            Some(record) if record.id != id => {
                let error =
                    FileError::new(ErrorKind::InvalidData, "it is the record of another job");
                Err(error.at(&directory.path().join(id)))
            }
            record => Ok(record),
        }
    }

    /// Writes the record, or replaces that of an earlier job with this id.
    pub fn write(&self, run_dir: &RunDir) -> FileResult<()> {
        let directory = Directory::open_or_create(&run_dir.path().join(JOBS), 0o755)?;
        write_json(&directory, &self.id, self, PUBLIC_MODE)
    }

    /// Removes the record.
    pub fn remove(&self, run_dir: &RunDir) -> FileResult<()> {
        match Self::open(run_dir)? {
            Some(directory) => directory.remove_file(&self.id),
            None => Ok(()),
        }
    }

    /// The path of the record of the job with this id.
    pub fn path(run_dir: &RunDir, id: &str) -> PathBuf {
        run_dir.path().join(JOBS).join(id)
    }

    /// True if a process is in the job's control group.
    pub fn has_process(&self, process: &Process) -> bool {
        process.is_in_control_group(&self.control_group)
    }

    fn open(run_dir: &RunDir) -> FileResult<Option<Directory>> {
        Directory::open_if_there(&run_dir.path().join(JOBS))
    }
}

const JOBS: &str = "jobs";
