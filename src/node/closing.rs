//! Devices that are closed to new programs: by whom, and who goes on.

use super::fault::Finding;
use super::{DaemonState, Served};
use crate::host::{Host, format_count};
use crate::state::Closing;

/// The process of the command that has closed a device to new programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closer {
    ThisProcess,
    /// It runs, and carries out what the record says.
    Another,
    /// There is none, or it has exited: `heal` carries it out.
    Gone,
}

impl Closer {
    /// Finds the process.
    pub fn find(closing: Option<&Closing>, host: &Host) -> Self {
        match closing.map(|closing| &closing.writer) {
            Some(writer) if writer.is_this_process(host) => Self::ThisProcess,
            Some(writer) if !writer.has_exited(host) => Self::Another,
            _ => Self::Gone,
        }
    }
}

impl Served {
    /// Returns what becomes of a device that admits no new programs: its daemon ends with its clients, or has ended.
    pub fn closing(&self) -> Option<&Closing> {
        match self.state {
            DaemonState::Closing | DaemonState::Dead => self.record.closing.as_ref(),
            _ => None,
        }
    }

    /// Describes the change that has closed the device to new programs, with its time limit while its command waits.
    pub fn describe_closing(&self) -> Option<String> {
        let closing = self.closing()?;
        Some(match self.closer {
            Closer::Gone => closing.origin.to_string(),
            Closer::ThisProcess | Closer::Another => closing.to_string(),
        })
    }

    /// Names the closed device and the change that has closed it.
    pub fn describe_closed_device(&self) -> Option<String> {
        let (name, closing) = (&self.record.name, self.describe_closing()?);
        Some(format!(
            "device {name} is closed to new programs by {closing}"
        ))
    }

    /// Returns the reason why a closed device takes no programs.
    pub fn closed_reason(&self) -> Option<String> {
        let closing = self.describe_closing()?;
        Some(format!("it is closed to new programs by {closing}"))
    }

    /// True if no command waits for the programs of the closed device, and these have exited.
    pub fn is_left_to_heal(&self) -> bool {
        self.closing().is_some()
            && self.closer == Closer::Gone
            && (!self.is_alive() || self.clients.are_none())
    }
}

/// Says for whom a device admits no new programs, whom it waits for, and what follows.
pub(super) fn closing_device_remark(served: &Served, closing: &Closing) -> Finding {
    let name = &served.record.name;
    let clients = match served.clients.as_slice() {
        _ if !served.is_alive() || served.is_left_to_heal() => {
            "its programs have exited".to_owned()
        }
        [] if served.clients.are_known() => "its last programs are exiting".to_owned(),
        [] => "its clients are not visible to this user".to_owned(),
        clients => format!("{} still running", format_count(clients.len(), "client")),
    };
    let change = served.describe_closing().unwrap_or_default();
    let seen = format!("closed to new programs by {change}; {clients}");
    let follows = match closing.next {
        Some(_) => "when its programs have exited, a new daemon starts",
        None => "when its programs have exited, it stays without a daemon",
    };
    let then = match closing.next {
        Some(_) => "start a new daemon",
        None => "leave it without a daemon",
    };
    let remedy = match served.closer {
        Closer::Gone if served.is_left_to_heal() => {
            format!("run `mig-mps heal` to {then}, or wait for its timer")
        }
        Closer::Gone => format!("{follows}; run `mig-mps heal`, or wait for its timer"),
        Closer::ThisProcess | Closer::Another => follows.to_owned(),
    };
    Finding::warn("device-closing", seen)
        .with_remedy(remedy)
        .on_device(name)
}
