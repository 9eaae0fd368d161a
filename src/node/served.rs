use std::fmt;
use std::path::PathBuf;

use super::program::{Client, Clients, ServerProcess};
use crate::mps::ControlProgram;
use crate::nvml::EXCLUSIVE_PROCESS;
use crate::settings::{Reported, Serve, Server};
use crate::state::{DeviceRecord, RunDir};

/// Memory that the driver lists for a client and MPS does not count against its limit: 2 MiB of a client on a whole H200, as
/// measured, and some for what other GPUs and drivers do.
const NOT_COUNTED: u64 = 128 << 20;

/// A device with a record, and the state of its daemon.
#[derive(Clone, Debug)]
pub struct Served {
    pub record: DeviceRecord,
    /// The run directory the record is in.
    pub run_dir: RunDir,
    /// The presence of the device.
    pub presence: Presence,
    /// The state of its daemon.
    pub state: DaemonState,
    /// True if its start was interrupted, and no change in progress will finish it.
    pub is_abandoned: bool,
    /// True if `heal` no longer starts it: it did so too often within the last hour.
    pub is_given_up: bool,
    /// An answer that cannot be parsed, or the reason why it did not answer.
    pub problem: Option<String>,
    /// Its servers: at most one, except while one user's server replaces another's.
    pub servers: Vec<ServerProcess>,
    /// Its clients. Its servers are known if they are.
    pub clients: Clients,
    /// Programs that wait in `cuInit` until those of another user have exited.
    pub waiting: Vec<Client>,
    /// The most clients that it accepts, or `max-clients` if that is less; `None` if neither is known.
    pub client_limit: Option<u32>,
    /// Its GPU's compute mode by NVML's number; `None` on a MIG device, and if it was not read.
    pub compute_mode: Option<u32>,
    /// The daemon's current defaults for servers; `None` if it was not asked.
    pub answered: Option<Reported>,
    /// The log that its daemon writes without pause. Read with `Detail::Status` alone.
    pub log_growth: Option<LogGrowth>,
}

/// The presence of a recorded device on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It exists, under the recorded UUID.
    There,
    /// It does not, or only under another UUID.
    Gone,
    /// It cannot be seen.
    Unseen(Unseen),
}

/// The reason why a device cannot be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// The driver does not answer.
    NoDriver,
    /// Its GPU is lost or cannot be read.
    Lost(String),
    /// The driver hides the instances of its GPU from the caller.
    Hidden(String),
}

impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver => f.write_str("the driver does not answer"),
            Self::Lost(why) | Self::Hidden(why) => f.write_str(why),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonState {
    /// Its server accepts clients.
    Ready,
    /// It has no server: the first client starts one.
    NoServerYet,
    /// Its server is starting, or an `up` has not finished with it.
    Starting,
    /// Its server had a fatal GPU fault and waits until every client has exited.
    Fault,
    /// It runs, and another control session keeps it from answering.
    Busy,
    /// It runs, and was not asked: the caller may not, or did not need to.
    Hidden,
    /// It waits for a client that has died, and every new client waits for it.
    Hung,
    /// It runs, and does not answer.
    NoAnswer,
    /// It runs, and its pipe directory is gone: no program can reach it.
    Orphan,
    /// It has exited; its record, and possibly files, are left.
    Dead,
}

impl Served {
    /// True if the device exists.
    pub fn is_there(&self) -> bool {
        self.presence == Presence::There
    }

    /// True if the device is gone.
    pub fn is_gone(&self) -> bool {
        self.presence == Presence::Gone
    }

    /// Returns the reason why its GPU cannot be read.
    pub fn lost(&self) -> Option<&str> {
        match &self.presence {
            Presence::Unseen(Unseen::Lost(why)) => Some(why),
            _ => None,
        }
    }

    /// True if its daemon runs as a user that root chose (`serve = "user:NAME"`).
    pub fn is_a_users(&self) -> bool {
        matches!(self.record.settings.serve, Some(Serve::User(_)))
    }

    /// True if somebody changed the compute mode that was set for its daemon.
    pub fn mode_is_lost(&self) -> bool {
        self.record.finished
            && self.record.settings.compute_mode.is_some()
            && self
                .compute_mode
                .is_some_and(|mode| mode != EXCLUSIVE_PROCESS)
    }

    /// True if a server was started with the daemon and has ended. A server that is starting, or that gave way to
    /// another user's, is not lost.
    pub fn has_lost_its_server(&self) -> bool {
        self.state == DaemonState::NoServerYet
            && self.record.finished
            && self.record.settings.server == Server::Eager
    }

    /// True if there is a memory limit, and the memory of some client cannot be seen.
    pub fn hides_memory_over_limit(&self) -> bool {
        let mut clients = self.clients.listed().iter();
        self.record.settings.pinned_memory_limit.is_some()
            && !(self.clients.are_known() && clients.all(|client| client.memory.is_some()))
    }

    /// Returns the clients that use more memory than the device lets each client have.
    pub fn clients_over_limit(&self) -> impl Iterator<Item = &Client> {
        let limit = self.record.settings.pinned_memory_limit;
        // The limit of a daemon that somebody has changed is a problem of its own.
        let answered = self.answered.as_ref();
        let is_changed =
            answered.is_some_and(|answered| answered.has_other_memory_limit(&self.record.settings));
        let most = limit
            .filter(|_| !is_changed)
            .map(|limit| limit.bytes() + NOT_COUNTED);
        let clients = self.clients.listed().iter();
        clients.filter(move |client| {
            client
                .memory
                .zip(most)
                .is_some_and(|(used, most)| used > most)
        })
    }

    /// True if it is down, and `heal` has given it up.
    pub fn is_failing(&self) -> bool {
        self.is_given_up && matches!(self.state, DaemonState::Dead | DaemonState::Hung)
    }

    /// True if its daemon was asked for its settings.
    pub fn is_read_back(&self) -> bool {
        self.record.finished && self.answered.is_some()
    }

    /// Returns the most clients that the hardware admits, where that is known.
    pub(super) fn most_clients(&self, program: ControlProgram) -> Option<u32> {
        let is_whole = self.record.key.instance.is_none();
        program.client_limit.filter(|_| is_whole)
    }

    /// True if its daemon runs, or may run.
    pub fn is_alive(&self) -> bool {
        self.state != DaemonState::Dead
    }
}

/// Logged over and over by a daemon that may open no more files.
pub(super) const CANNOT_ACCEPT: &str = "Unable to accept connection";

/// A log that its daemon writes without pause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogGrowth {
    /// The log.
    pub path: PathBuf,
    /// Its length in bytes.
    pub length: u64,
    /// Bytes that are added each second.
    pub per_second: u64,
    /// The line that the daemon repeats.
    pub text: String,
}

impl LogGrowth {
    /// True if its daemon accepts no clients.
    pub fn accepts_nobody(&self) -> bool {
        self.text == CANNOT_ACCEPT
    }
}
