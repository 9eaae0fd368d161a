use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::key::DeviceKey;
use crate::geometry::{Placement, ProfileId};
use crate::host::{Host, Pid, Process, StartTime, Uid};
use crate::settings::Settings;

/// `device.json`: what mig-mps made for one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DeviceRecord {
    /// The device's name.
    pub name: String,
    /// What it is matched by.
    pub key: DeviceKey,
    /// Its UUID when the daemon was started: the directory is called so.
    pub uuid: String,
    /// How its daemon serves; `serve` is always said.
    pub settings: Settings,
    /// The keys of them that `mig-mps set` has set, which no profile says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_hand: Vec<String>,
    /// The compute mode that the GPU had before this daemon was given another, by NVML's number; the
    /// daemon's end gives it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_mode_before: Option<u32>,
    /// The control daemon; `None` until it has been seen to hold its lock.
    pub daemon: Option<DaemonId>,
    /// Whether everything was set, started and read back. An interrupted start leaves it false.
    pub finished: bool,
    /// The boot it was started in.
    pub boot_id: String,
    /// When it was started.
    pub since: Timestamp,
}

/// A control daemon's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DaemonId {
    /// Its process id.
    pub pid: Pid,
    /// When that process started, in clock ticks since boot.
    pub start_time: StartTime,
    /// Its user. Records of earlier versions do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Uid>,
    /// The pid namespace in which the process has that id. Records of earlier versions do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<u64>,
}

impl DaemonId {
    /// The identity of a process that runs now.
    pub fn of(process: &Process, host: &Host) -> Self {
        Self {
            pid: process.pid,
            start_time: process.started,
            user: process.owner(),
            pid_namespace: host.pid_namespace(),
        }
    }

    /// True if a process is the one that was recorded.
    pub fn is(&self, process: &Process) -> bool {
        let is_users = self.user.is_none() || self.user == process.owner();
        process.pid == self.pid && process.started == self.start_time && is_users
    }

    /// The process, if it still runs and can be seen.
    pub fn running(&self, host: &Host) -> Option<Process> {
        host.process(self.pid).filter(|process| self.is(process))
    }

    /// True if the process may run and cannot be seen: it is of another pid namespace, or `/proc` hides it.
    pub fn is_hidden(&self, host: &Host) -> bool {
        let own = host.pid_namespace();
        let is_elsewhere =
            self.pid_namespace.is_some() && own.is_some() && self.pid_namespace != own;
        is_elsewhere || (host.process(self.pid).is_none() && !host.has_ended(self.pid))
    }
}

/// `node.json`: what mig-mps did to the node as a whole.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NodeFile {
    /// The applied profile's own name or path.
    pub profile: Option<String>,
    /// The boot of `created`: instances vanish with it.
    pub boot_id: String,
    /// The instances mig-mps made and has not destroyed.
    #[serde(default)]
    pub created: Vec<Created>,
    /// The UUIDs of the GPUs whose MIG mode mig-mps switched on.
    #[serde(default)]
    pub switched_on: Vec<String>,
}

/// An instance that mig-mps made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Created {
    /// The GPU's UUID.
    pub gpu: String,
    /// The GPU instance's profile.
    pub profile: ProfileId,
    /// Where the GPU instance lies.
    pub placement: Placement,
    /// For a compute instance made within somebody else's GPU instance, its place there; `None`
    /// for the GPU instance itself.
    pub compute: Option<Placement>,
}
