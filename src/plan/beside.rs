//! Unmanaged daemons on a device. They are never touched, and are no obstacle.

use crate::host::{Pid, user_name};
use crate::node::{MpsProgram, Node, Variable};
use crate::state::RunDir;

/// An unmanaged daemon that serves a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    pub pid: Pid,
    /// Whose it is; `None` where that is hidden.
    pub user: Option<String>,
    /// Its `CUDA_MPS_PIPE_DIRECTORY`.
    pub pipe_directory: Variable,
}

impl Beside {
    /// Returns the unmanaged daemons of a device. One in our own pipe directory is taken over instead.
    pub(super) fn all(node: &Node, run_dir: &RunDir, uuid: &str) -> Vec<Self> {
        let pipe = run_dir.pipe_dir(uuid).display().to_string();
        let unmanaged = node.unmanaged.iter().filter(|unmanaged| {
            unmanaged.program == MpsProgram::Control
                && unmanaged.devices.iter().any(|device| device == uuid)
                && unmanaged.pipe_directory.value() != Some(&pipe)
        });
        unmanaged
            .map(|unmanaged| Self {
                pid: unmanaged.pid,
                user: unmanaged.user.map(user_name),
                pipe_directory: unmanaged.pipe_directory.clone(),
            })
            .collect()
    }
}

/// The reason to start a daemon for a device without a record.
pub(super) fn because(beside: &[Beside]) -> String {
    let pids: Vec<String> = beside.iter().map(|daemon| daemon.pid.to_string()).collect();
    match pids.as_slice() {
        [] => "no daemon yet".to_owned(),
        [pid] => format!("only an unmanaged daemon, pid {pid}, serves it"),
        _ => format!("only unmanaged daemons, pids {}, serve it", pids.join(", ")),
    }
}
