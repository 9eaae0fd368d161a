//! The identity of a machine. On a file system that several machines share, a file belongs to one machine.

use std::fs;

use serde::{Deserialize, Serialize};

use super::Host;

/// A machine. Each file on a file system that machines share belongs to one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub name: String,
    /// The content of machine-id(5); `None` where there is none, as in many containers.
    id: Option<String>,
}

impl Machine {
    /// True unless both are one machine, which may have been booted in between. Images of machines are copied with their id,
    /// and some machines get a new one with each boot.
    pub fn is_other(&self, than: &Self) -> bool {
        let ids = self.id.as_ref().zip(than.id.as_ref());
        self.name != than.name || ids.is_some_and(|(own, other)| own != other)
    }
}

impl Host {
    /// Returns this machine as it names itself.
    pub fn this_machine(&self) -> Machine {
        let id = fs::read_to_string(self.under_root("/etc/machine-id"));
        Machine {
            name: host_name(),
            id: id.ok().map(|id| id.trim().to_owned()),
        }
    }
}

/// Returns the name of this machine, as a name of a file.
pub fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" | "." | ".." => "localhost".to_owned(),
        name => name.replace('/', "-"),
    }
}
