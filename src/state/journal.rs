use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::geometry::{Placement, ProfileId};
use crate::host::{Host, Pid, StartTime, Unit, bounded};

/// `journal.json`: a change under way. One that is found with its writer gone was killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Journal {
    /// The writer's command line.
    pub command: String,
    /// When it began.
    pub since: Timestamp,
    /// The writer.
    pub pid: Pid,
    /// With the id, its identity.
    pub start_time: StartTime,
    /// The boot it ran in: after another, units have been started by systemd.
    pub boot_id: String,
    /// Monitoring units that it has stopped, or was about to, and that must be started again.
    pub units: Vec<Unit>,
    /// What it has taken away, or was about to.
    pub taken: Vec<Taken>,
}

/// A GPU instance that a change takes away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Taken {
    /// The GPU's UUID.
    pub gpu: String,
    /// Its profile.
    pub profile: ProfileId,
    /// Its profile's name.
    pub name: String,
    /// Where it lay.
    pub placement: Placement,
}

impl Journal {
    /// Whether its writer has ended.
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
