//! The states of daemons and devices, and the words for them.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use super::{Device, Node};

/// The state of a recorded daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// It runs, and could not be asked, for this reason.
    NotAsked(String),
    /// Every new client waits forever, for this reason.
    Hung(String),
    /// It runs, and admits no new clients: it ends with the last one.
    Closing,
    /// A signal has suspended it.
    Suspended,
    /// It runs, and does not answer, or not as it should: for this reason.
    NoAnswer(String),
    /// It runs, and its pipe directory is gone: no program can reach it.
    Orphan,
    /// It has exited; its record, and possibly files, are left.
    Dead,
}

impl DaemonState {
    /// Returns what keeps the daemon from serving, in the words of plans and refusals; `None` where nothing does.
    pub fn outage_reason(&self) -> Option<&'static str> {
        match self {
            Self::Dead => Some("its daemon has died"),
            Self::Orphan => Some("its pipe directory was removed"),
            Self::NoAnswer(_) => Some("its daemon does not answer"),
            Self::Closing => Some("it admits no new programs"),
            Self::Suspended => Some("its daemon is stopped by a signal"),
            Self::Hung(_) => Some("it is hung, so new clients would wait forever"),
            Self::Ready
            | Self::NoServerYet
            | Self::Starting
            | Self::Fault
            | Self::Busy
            | Self::Hidden
            | Self::NotAsked(_) => None,
        }
    }

    /// True if the daemon runs and was not asked.
    pub fn is_hidden(&self) -> bool {
        matches!(self, Self::Hidden | Self::NotAsked(_))
    }

    /// Returns the reason for the state, where it has one of its own.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::NotAsked(why) | Self::Hung(why) | Self::NoAnswer(why) => Some(why),
            _ => None,
        }
    }
}

/// The state of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub enum DeviceState {
    /// It would take a client now.
    #[serde(rename = "ready")]
    Ready,
    /// The server starts with the first client.
    #[serde(rename = "no server yet")]
    NoServerYet,
    /// Its server is starting, or a change is not finished.
    #[serde(rename = "starting")]
    Starting,
    /// A fatal GPU fault, until every client has exited.
    #[serde(rename = "fault")]
    Fault,
    /// Another control session is open, so that it does not answer.
    #[serde(rename = "busy")]
    Busy,
    /// It runs, and the caller may not ask it; or whether it runs cannot be seen.
    #[serde(rename = "hidden")]
    Hidden,
    /// Every new client waits for ever.
    #[serde(rename = "hung")]
    Hung,
    /// It runs and does not answer.
    #[serde(rename = "no answer")]
    NoAnswer,
    /// It runs, and its pipe directory was removed.
    #[serde(rename = "orphan")]
    Orphan,
    /// It is closed to new programs, until those that run have exited and a change goes on.
    #[serde(rename = "closing")]
    Closing,
    /// It has ended.
    #[serde(rename = "dead")]
    Dead,
    /// It is dead or hung, and `heal` has given it up.
    #[serde(rename = "failing")]
    Failing,
    /// Its device is gone.
    #[serde(rename = "no device")]
    NoDevice,
    /// It runs, and its GPU is lost or cannot be read.
    #[serde(rename = "gpu lost")]
    GpuLost,
    /// `mig-mps down` has stopped it by name.
    #[serde(rename = "stopped")]
    Stopped,
    /// mig-mps does not serve the device.
    #[serde(rename = "no daemon")]
    NoDaemon,
}

impl DeviceState {
    pub const ALL: [Self; 16] = [
        Self::Ready,
        Self::NoServerYet,
        Self::Starting,
        Self::Fault,
        Self::Busy,
        Self::Hidden,
        Self::Hung,
        Self::NoAnswer,
        Self::Orphan,
        Self::Closing,
        Self::Dead,
        Self::Failing,
        Self::NoDevice,
        Self::GpuLost,
        Self::Stopped,
        Self::NoDaemon,
    ];
}

/// The word in JSON.
impl fmt::Display for DeviceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Node {
    /// Returns the state of a device.
    pub fn state_of(&self, device: &Device) -> DeviceState {
        match &device.served {
            None if self.may_be_served(&device.uuid) => DeviceState::Hidden,
            None if self.find_stopped(device).is_some() => DeviceState::Stopped,
            None => DeviceState::NoDaemon,
            Some(served) if device.is_gone() && self.expects_device(served) => {
                DeviceState::NoDevice
            }
            Some(served) if device.lost_gpu_reason().is_some() && served.is_alive() => {
                DeviceState::GpuLost
            }
            Some(served) if served.closing().is_some() => DeviceState::Closing,
            Some(served) if served.is_failing() => DeviceState::Failing,
            Some(served) => match &served.state {
                DaemonState::Ready => DeviceState::Ready,
                DaemonState::NoServerYet => DeviceState::NoServerYet,
                DaemonState::Starting => DeviceState::Starting,
                DaemonState::Fault => DeviceState::Fault,
                DaemonState::Busy => DeviceState::Busy,
                DaemonState::Hidden | DaemonState::NotAsked(_) => DeviceState::Hidden,
                DaemonState::Hung(_) => DeviceState::Hung,
                DaemonState::NoAnswer(_) | DaemonState::Suspended => DeviceState::NoAnswer,
                DaemonState::Orphan => DeviceState::Orphan,
                DaemonState::Closing => DeviceState::Closing,
                DaemonState::Dead => DeviceState::Dead,
            },
        }
    }
}
