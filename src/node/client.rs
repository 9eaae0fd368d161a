use std::time::Duration;

use crate::host::{Pid, StartTime, Uid};

/// An MPS server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerProcess {
    /// Its process id.
    pub pid: Pid,
    /// Its user; `None` if hidden.
    pub user: Option<Uid>,
}

/// A program that computes through MPS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its process id; 0 for a client in a pid namespace that cannot be seen from here.
    pub pid: Pid,
    /// Identifies the process together with the pid; `None` if the process cannot be seen.
    pub started: Option<StartTime>,
    /// Its server; `None` for a program that waits for one.
    pub server: Option<Pid>,
    /// Its user; `None` if hidden.
    pub user: Option<Uid>,
    /// Its command line; `None` if hidden.
    pub command: Option<String>,
    /// Device memory in use, in bytes; `None` if the driver does not report it.
    pub memory: Option<u64>,
    /// Time since it was started.
    pub age: Option<Duration>,
}
