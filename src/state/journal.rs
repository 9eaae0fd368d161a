use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::geometry::{Placement, ProfileId};
use crate::host::{Host, Pid, StartTime, Unit, bounded};

/// `journal.json`: a change in progress. If its process has exited, the change was killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Journal {
    /// The command line of the process.
    pub command: String,
    /// The time at which the change started.
    pub since: Timestamp,
    /// The process.
    pub pid: Pid,
    /// Identifies the process together with the pid.
    pub start_time: StartTime,
    /// The boot in which it ran: after the next boot, systemd has started the units.
    pub boot_id: String,
    /// Monitoring units that it stopped, or was about to, and that must be started again.
    pub units: Vec<Unit>,
    /// GPU instances that it destroyed, or was about to.
    pub taken: Vec<Taken>,
}

/// A GPU instance that a change destroys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Taken {
    /// The GPU's UUID.
    pub gpu: String,
    /// Its profile.
    pub profile: ProfileId,
    /// Its profile's name.
    pub name: String,
    /// Its placement.
    pub placement: Placement,
}

impl Journal {
    /// True if its process has exited.
    pub fn is_of_the_dead(&self, host: &Host) -> bool {
        let writer = host.process(self.pid);
        writer.is_none_or(|writer| writer.started != self.start_time)
    }
}

/// `mig-mps up profile.toml (process 4711, since …)`
impl fmt::Display for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (process {}, since {})",
            bounded(&self.command),
            self.pid,
            self.since.strftime("%Y-%m-%dT%H:%M:%SZ")
        )
    }
}
