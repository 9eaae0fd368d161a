//! The process that writes a file of a state or run directory.

use serde::{Deserialize, Serialize};

use crate::host::{Host, Machine, Pid, StartTime};

/// The process that wrote a file, and where it ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Writer {
    pub pid: Pid,
    /// Identifies the process together with the pid.
    pub start_time: StartTime,
    /// The boot in which it ran.
    pub boot_id: String,
    /// The machine of that boot; `None` in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
}

impl Writer {
    /// Returns this process, in the boot with this id.
    pub fn for_this_process(host: &Host, boot_id: &str) -> Self {
        let pid = Pid(std::process::id());
        let process = host.find_process(pid);
        Self {
            pid,
            start_time: process.map_or(StartTime(0), |process| process.started),
            boot_id: boot_id.to_owned(),
            machine: Some(host.this_machine()),
        }
    }

    /// True if it is this process.
    pub fn is_this_process(&self, host: &Host) -> bool {
        self.pid.0 == std::process::id() && !self.has_exited(host)
    }

    /// True if the process has exited.
    pub fn has_exited(&self, host: &Host) -> bool {
        let process = host.find_process(self.pid);
        process.is_none_or(|process| process.started != self.start_time)
    }
}
