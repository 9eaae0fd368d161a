use super::client::ServerProcess;
use crate::host::{Pid, StartTime};

/// A server in a pipe directory of mig-mps that outlived its daemon. It keeps its GPU memory until it is terminated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// The UUID of its device.
    pub uuid: String,
    /// Its process.
    pub server: ServerProcess,
    /// Identifies the process together with the pid.
    pub started: StartTime,
    /// The clients on its device that belong to no daemon; `None` if the driver hides clients.
    pub clients: Option<Vec<Pid>>,
}

impl Stray {
    /// True if terminating it disrupts nobody.
    pub fn is_idle(&self) -> bool {
        self.clients.as_ref().is_some_and(Vec::is_empty)
    }
}
