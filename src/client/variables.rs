//! The environment of a device's clients.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::ClientLimits;
use super::limits::MEMORY;
use crate::mps::MAX_PIPE_DIR;
use crate::state::{DeviceRecord, RunDir};

const THREADS: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
const PRIORITY: &str = "CUDA_MPS_CLIENT_PRIORITY";

/// Variables with which a program would not be a client of the daemon, or not of the server that it should have: another
/// version of the protocol, and a partition of another device.
const SPOILING: [&str; 2] = ["CUDA_MPS_PROTOCOL_VERSION", "CUDA_MPS_SM_PARTITION"];

/// Returns the variables by which a program limits itself.
pub fn own_limits() -> [&'static str; 3] {
    [THREADS, MEMORY, PRIORITY]
}

/// The environment variables of a client.
#[derive(Debug)]
pub struct Variables {
    pub set: Vec<(&'static str, OsString)>,
    /// The variables that must not be set.
    pub unset: Vec<&'static str>,
}

impl Variables {
    /// Returns the variables of a program on a device outside MPS: its pipe directory is an empty one.
    pub fn outside(record: &DeviceRecord, nowhere: &Path) -> Self {
        let mut unset = SPOILING.to_vec();
        unset.push("CUDA_MPS_LOG_DIRECTORY");
        Self {
            set: vec![
                ("CUDA_MPS_PIPE_DIRECTORY", nowhere.into()),
                ("CUDA_VISIBLE_DEVICES", record.uuid.clone().into()),
            ],
            unset,
        }
    }

    /// Returns the variables for a device.
    ///
    /// The pipe directory is named by the device's link, which survives a change of its UUID, unless that path is too long
    /// for a socket.
    pub fn of(
        record: &DeviceRecord,
        run_dir: &RunDir,
        logs: Option<PathBuf>,
        limits: &ClientLimits,
    ) -> Self {
        let by_name = run_dir.by_name(&record.name).join("pipe");
        let pipe = if by_name.as_os_str().len() <= MAX_PIPE_DIR {
            by_name
        } else {
            run_dir.pipe_dir(&record.uuid)
        };
        let mut set: Vec<(&'static str, OsString)> = vec![("CUDA_MPS_PIPE_DIRECTORY", pipe.into())];
        set.extend(logs.map(|logs| ("CUDA_MPS_LOG_DIRECTORY", logs.join(&record.uuid).into())));
        set.push(("CUDA_VISIBLE_DEVICES", record.uuid.clone().into()));
        let threads = limits.threads.map(|threads| threads.value().to_string());
        // The program sees one device, which is number 0.
        let memory = limits
            .memory
            .map(|memory| format!("0={}", memory.in_mebibytes()));
        let priority = limits
            .priority
            .map(|priority| priority.number().to_string());
        let mut unset = SPOILING.to_vec();
        if memory.is_none() {
            // One of another device would lift the limit of this one.
            unset.push(MEMORY);
        }
        for (name, value) in own_limits().into_iter().zip([threads, memory, priority]) {
            if let Some(value) = value {
                set.push((name, value.into()));
            }
        }
        Self { set, unset }
    }

    /// Returns what to set where nothing can be unset. An empty memory limit limits nothing (measured on driver 580), and
    /// takes the place of one that would lift the device's.
    pub fn set_alone(self) -> Vec<(&'static str, OsString)> {
        let mut set = self.set;
        if self.unset.contains(&MEMORY) {
            set.push((MEMORY, OsString::new()));
        }
        set
    }
}
