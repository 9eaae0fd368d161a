//! The reasons why a user's programs cannot use a device, or not now.

use std::path::PathBuf;

use thiserror::Error;

use crate::failure::Failure;
use crate::host::{Uid, caller};
use crate::node::{Client, Node};

/// A user's programs cannot use a device, or not now.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NoAccess {
    #[error(
        "the user or group of this process is not mapped in its user namespace; cuInit would hang, here and in every \
         later client"
    )]
    Unmapped,
    #[error("no daemon serves device {name}: {state}")]
    NotServed { name: String, state: &'static str },
    #[error("device {name} accepts no programs: {why}")]
    Down {
        name: String,
        why: String,
        /// True if the daemon answers nobody, so that only force ends it.
        needs_force: bool,
    },
    /// It waits for the programs that it has, and then changes.
    #[error("device {name} is closed to new programs by {change}")]
    Closing {
        name: String,
        change: String,
        /// True if it admits programs again after that.
        opens_again: bool,
        /// True if its programs have exited, and `heal` carries the change out.
        is_left_to_heal: bool,
    },
    /// Programs would run outside MPS.
    #[error("{user} may not enter {}, which leads to the daemon of device {name}", closed.display())]
    Closed {
        name: String,
        user: String,
        closed: PathBuf,
    },
    #[error("device {name} serves only {}, not user {user}", account(clients))]
    Reserved {
        name: String,
        clients: String,
        user: String,
    },
    /// Its server had a fault, and takes no clients until those that it has are gone.
    #[error(
        "device {name} is recovering from a GPU fault and accepts no clients until {clients} exited"
    )]
    Faulty { name: String, clients: String },
    /// It serves one user at a time, and another one now.
    #[error("device {name} is in use by {user}: {clients}")]
    InUse {
        name: String,
        user: String,
        clients: String,
    },
    #[error("{part} is full ({clients} of {clients} clients)")]
    Full {
        /// The device, or one GPU of it.
        part: String,
        clients: usize,
    },
    /// A program would get less memory than is wanted.
    #[error("{name} has {mib} MiB for a program, less than {wanted}{}", limited(*.is_limited))]
    LittleMemory {
        name: String,
        mib: u64,
        wanted: String,
        /// True if its limit for a client is less.
        is_limited: bool,
        /// True if other programs have what is missing.
        is_passing: bool,
    },
    #[error("the memory of {name} is hidden")]
    HiddenMemory { name: String },
    /// A change of the node ends its daemon, or starts another.
    #[error("device {name} accepts no new programs now: the node is being changed{}", by(change.as_deref()))]
    Changing {
        name: String,
        /// The change, if the user may see it.
        change: Option<String>,
    },
}

/// `, by mig-mps up (process 4711, since …)`
fn by(change: Option<&str>) -> String {
    change.map_or_else(String::new, |change| format!(", by {change}"))
}

fn limited(is_limited: bool) -> &'static str {
    if is_limited {
        " (its pinned-memory-limit)"
    } else {
        ""
    }
}

/// `user alice`, `the group staff`
fn account(clients: &str) -> String {
    if clients.starts_with(GROUP_PREFIX) {
        clients.to_owned()
    } else {
        format!("user {clients}")
    }
}

/// The words before the name of a group.
pub(super) const GROUP_PREFIX: &str = "the group ";

/// `pid 812 (python train.py)`, `pid 812 (python train.py, slurm 7.0)`
pub(super) fn describe_client(client: &Client) -> String {
    let command = client.command.as_deref().unwrap_or("hidden");
    let workload = client
        .workload
        .as_ref()
        .filter(|one| one.is_any())
        .map(|one| format!(", {one}"))
        .unwrap_or_default();
    format!("pid {} ({command}{workload})", client.shown_pid())
}

impl NoAccess {
    /// True if it ends when other programs do.
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            Self::Faulty { .. }
                | Self::Closing {
                    opens_again: true,
                    ..
                }
                | Self::InUse { .. }
                | Self::Full { .. }
                | Self::Changing { .. }
                | Self::LittleMemory {
                    is_passing: true,
                    ..
                }
        )
    }

    /// Returns the reason for a daemon that is down while the node is being changed: the change may have ended it.
    #[must_use]
    pub fn during_change(self, node: &Node) -> Self {
        match self {
            Self::Down { name, .. } | Self::NotServed { name, .. } if node.is_changing() => {
                let change = node.under_way.first().map(ToString::to_string);
                Self::Changing { name, change }
            }
            other => other,
        }
    }
}

/// Returns the hint to start a new daemon. A plain user may own the daemon or not, so the hint says both.
fn restart_hint(name: &str, needs_force: bool) -> String {
    let force = if needs_force { " --force" } else { "" };
    let command = format!("`mig-mps restart {name}{force}`");
    match caller() {
        Uid::ROOT => format!("run {command} to start a new daemon"),
        _ => format!(
            "run {command} if you own the daemon, or ask its owner; `mig-mps status` shows the other devices"
        ),
    }
}

impl Failure for NoAccess {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Unmapped => {
                "map them, for example with `unshare --map-root-user` or in the configuration of the container"
                    .to_owned()
            }
            Self::NotServed { name, .. } => restart_hint(name, false),
            Self::Down {
                name, needs_force, ..
            } => restart_hint(name, *needs_force),
            // Its mode, or its list, is made from the device's setting.
            Self::Closed { name, closed, .. } if closed.ends_with("pipe") => {
                format!("run `mig-mps restart {name}` to give its users access again")
            }
            Self::Closed { closed, .. } => {
                let command = format!("chmod o+x {}", closed.display());
                let who = match caller() {
                    Uid::ROOT => "give users access",
                    _ => "ask root to give you access",
                };
                format!("{who} (`{command}`), or start the daemon in another run directory")
            }
            Self::Reserved {
                name,
                clients,
                user,
            } if caller() != Uid::ROOT || clients.starts_with(GROUP_PREFIX) => format!(
                "run `mig-mps run --any -- PROGRAM` to use a device that serves you; the key serve in the profile \
                 decides whether user {user} may use device {name}"
            ),
            Self::Reserved { clients, .. } => format!(
                "run the program as user {clients} (`runuser -u {clients} -- COMMAND`), or use another device: \
                 `mig-mps status`"
            ),
            Self::HiddenMemory { .. } => {
                "omit --min-memory, or use another device: `mig-mps status`".to_owned()
            }
            Self::LittleMemory {
                is_passing: false, ..
            } => "use a smaller --min-memory, or another device: `mig-mps status`".to_owned(),
            Self::Closing {
                is_left_to_heal: true,
                ..
            } => "run `mig-mps heal` as root to complete the change, or wait for its timer".to_owned(),
            Self::Closing {
                opens_again: false, ..
            } => "run `mig-mps status` to see the other devices".to_owned(),
            Self::Closing { .. } => "wait for the device with --wait 5m".to_owned(),
            Self::InUse { name, .. } => format!(
                "wait for the device with --wait 5m, or use another device (`mig-mps status`); device {name} serves \
                 one user at a time, which the key serve in the profile decides"
            ),
            Self::Faulty { .. }
            | Self::Full { .. }
            | Self::Changing { .. }
            | Self::LittleMemory { .. } => {
                "wait for the device with --wait 5m, or use another device: `mig-mps status`".to_owned()
            }
        })
    }
}
