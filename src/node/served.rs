use std::time::Duration;

use super::LogGrowth;
use crate::host::{Pid, StartTime, Uid};
use crate::mps::Defaults;
use crate::nvml::EXCLUSIVE_PROCESS;
use crate::settings::{Serve, Server};
use crate::state::{DeviceRecord, RunDir};

/// A device that mig-mps serves, or served, with what was found of its daemon.
#[derive(Clone, Debug)]
pub struct Served {
    /// What was recorded when the daemon was started.
    pub record: DeviceRecord,
    /// The run directory the record is in.
    pub run_dir: RunDir,
    /// Whether the device is there now, under the recorded UUID.
    pub device_is_there: bool,
    /// How its daemon is.
    pub life: Life,
    /// Whether its start was interrupted, and nobody is about to finish it.
    pub is_abandoned: bool,
    /// Whether its servers and clients are known: a daemon that could not be asked has an unknown
    /// number of them, not none.
    pub is_known: bool,
    /// What it answered that cannot be understood, or why it did not answer.
    pub problem: Option<String>,
    /// Its servers: at most one, but for the moment when one user's follows another's.
    pub servers: Vec<ServerProcess>,
    /// Its clients.
    pub clients: Vec<Client>,
    /// Programs that wait in `cuInit` until those of another user have gone.
    pub waiting: Vec<Client>,
    /// How many clients it takes, or is meant for (`max-clients`), where that is known.
    pub client_limit: Option<u32>,
    /// Its GPU's compute mode by NVML's number; `None` on a MIG device, and where it was not asked.
    pub compute_mode: Option<u32>,
    /// What it gives to servers, as it answers now; `None` where it was not asked: what was read back when it
    /// was started is in the record.
    pub answered: Option<Defaults>,
    /// The log that its daemon writes without pause. Looked for with [`Look::Status`](super::Look::Status).
    pub log_growth: Option<LogGrowth>,
}

/// How a daemon is, in the words of `status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Its server serves.
    Ready,
    /// It waits for the first client to start a server for.
    NoServerYet,
    /// Its server is coming up, or an `up` has not finished with it.
    Starting,
    /// Its server has met a fatal GPU fault and waits until every client has gone.
    Fault,
    /// It is alive, and somebody else's control session keeps it from answering.
    Busy,
    /// It lives, and was asked nothing: the caller may not, or did not need to.
    Hidden,
    /// It waits for a client that has died, and so does every new client: see the MPS manual on hung devices.
    Hung,
    /// It lives, and does not answer.
    NoAnswer,
    /// It lives, and its pipe directory is gone: no program can reach it.
    Orphan,
    /// It is gone; the record and maybe files of it are left.
    Dead,
}

impl Life {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::NoServerYet => "no server yet",
            Self::Starting => "starting",
            Self::Fault => "fault",
            Self::Busy => "busy",
            Self::Hidden => "hidden",
            Self::Hung => "hung",
            Self::NoAnswer => "no answer",
            Self::Orphan => "orphan",
            Self::Dead => "dead",
        }
    }
}

/// An MPS server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerProcess {
    /// Its process id.
    pub pid: Pid,
    /// Whose it is; `None` where that is hidden.
    pub user: Option<Uid>,
}

/// A program that computes through MPS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its process id; 0 for one in a pid namespace that cannot be seen from here.
    pub pid: Pid,
    /// With the id, its identity; `None` where its process cannot be seen.
    pub started: Option<StartTime>,
    /// The server that has it; `None` for one that waits.
    pub server: Option<Pid>,
    /// Whose it is; `None` where that is hidden.
    pub user: Option<Uid>,
    /// Its command line; `None` where that is hidden.
    pub command: Option<String>,
    /// Device memory it uses in bytes; `None` where the driver does not tell.
    pub memory: Option<u64>,
    /// For how long it has been running.
    pub age: Option<Duration>,
}

impl Served {
    /// True if its daemon runs as a user that root has chosen.
    pub fn is_a_users(&self) -> bool {
        matches!(self.record.settings.serve, Some(Serve::User(_)))
    }

    /// Whether its GPU has lost the compute mode that its daemon was started with: somebody has set another.
    pub fn mode_is_lost(&self) -> bool {
        self.record.finished
            && self.record.settings.compute_mode.is_some()
            && self
                .compute_mode
                .is_some_and(|mode| mode != EXCLUSIVE_PROCESS)
    }

    /// Whether it was given a server when it started, and has none now. One that goes because another user's
    /// takes its place, or that is coming up, is not lost.
    pub fn has_lost_its_server(&self) -> bool {
        self.life == Life::NoServerYet
            && self.record.finished
            && self.record.settings.server == Server::Eager
    }

    /// Whether its daemon lives, whatever else is to be said of it.
    pub fn is_alive(&self) -> bool {
        self.life != Life::Dead
    }
}
