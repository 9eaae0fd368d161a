use std::time::Duration;

use crate::host::{Pid, Uid};

/// A program that computes on a device without being a client of a daemon.
#[derive(Clone, Debug)]
pub struct OutsideMps {
    /// The device's UUID.
    pub uuid: String,
    /// Its process id.
    pub pid: Pid,
    /// Its user; `None` if hidden.
    pub user: Option<Uid>,
    /// Its command line.
    pub command: String,
    /// Device memory in use, in bytes; `None` if the driver does not report it.
    pub memory: Option<u64>,
    /// Time since it was started.
    pub age: Option<Duration>,
    /// True if a daemon serves the device: the program should be its client, and evades the limits of the others.
    pub is_served: bool,
    /// The most likely reason.
    pub cause: String,
}
