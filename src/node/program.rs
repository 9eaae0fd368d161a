//! The programs on a device: servers, clients, and those that are neither.

use std::time::Duration;

use crate::host::{Pid, Process, StartTime, Uid};

/// An MPS server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerProcess {
    pub pid: Pid,
    /// Its user; `None` if hidden.
    pub user: Option<Uid>,
}

impl ServerProcess {
    pub(super) fn of(process: &Process) -> Self {
        Self {
            pid: process.pid,
            user: process.owner(),
        }
    }
}

/// A program that computes through MPS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its process id; `None` if it is in a pid namespace that cannot be seen from here.
    pub pid: Option<Pid>,
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

impl Client {
    /// Returns its process id for a message.
    pub fn shown_pid(&self) -> String {
        self.pid
            .map_or_else(|| "hidden".to_owned(), |pid| pid.to_string())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clients {
    /// Every client.
    Known(Vec<Client>),
    /// Some or all are unknown: the daemon or the driver did not list them.
    Partial(Vec<Client>),
}

impl Clients {
    /// The clients that were listed.
    pub fn listed(&self) -> &[Client] {
        match self {
            Self::Known(clients) | Self::Partial(clients) => clients,
        }
    }

    /// True if all clients are known.
    pub fn are_known(&self) -> bool {
        matches!(self, Self::Known(_))
    }

    /// True if there certainly are none.
    pub fn are_none(&self) -> bool {
        matches!(self, Self::Known(clients) if clients.is_empty())
    }

    /// True if a client has that process id.
    pub fn have(&self, pid: Pid) -> bool {
        self.listed().iter().any(|client| client.pid == Some(pid))
    }
}

/// A server in a pipe directory of mig-mps that outlived its daemon. It keeps its GPU memory until it is terminated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
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

/// A program that computes on a device without being a client of a daemon.
#[derive(Clone, Debug)]
pub struct OutsideMps {
    pub uuid: String,
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
