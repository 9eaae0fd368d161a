//! Daemons of others on a device that is to be served. They are never touched, and in nobody's way.

use crate::host::{Pid, user_name};
use crate::node::{MpsProgram, Node, Variable};
use crate::state::RunDir;

/// A foreign daemon that serves a device already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    /// Its process id.
    pub pid: Pid,
    /// Whose it is; `None` where that is hidden.
    pub user: Option<String>,
    /// Its `CUDA_MPS_PIPE_DIRECTORY`.
    pub pipe_directory: Variable,
}

impl Beside {
    /// Those on the device with that UUID. One in our own directory is taken over, and not beside ours.
    pub(super) fn all(node: &Node, home: &RunDir, uuid: &str) -> Vec<Self> {
        let pipe = home.pipe_dir(uuid).display().to_string();
        let foreign = node.unmanaged.iter().filter(|foreign| {
            foreign.program == MpsProgram::Control
                && foreign.devices.iter().any(|device| device == uuid)
                && foreign.pipe_directory.value() != Some(&pipe)
        });
        foreign
            .map(|foreign| Self {
                pid: foreign.pid,
                user: foreign.user.map(user_name),
                pipe_directory: foreign.pipe_directory.clone(),
            })
            .collect()
    }
}

/// Why a device of which there is no record gets a daemon.
pub(super) fn because(beside: &[Beside]) -> String {
    let pids: Vec<String> = beside.iter().map(|daemon| daemon.pid.to_string()).collect();
    match pids.as_slice() {
        [] => "no daemon serves it".to_owned(),
        [pid] => format!("only a foreign daemon, pid {pid}, serves it"),
        _ => format!("only foreign daemons, pids {}, serve it", pids.join(", ")),
    }
}
