//! Who may use a device now: its user or group, its clients, the state of its daemon.

use std::path::PathBuf;

use thiserror::Error;

use crate::failure::Failure;
use crate::host::{Host, Reader, Uid, caller, count, user_name};
use crate::node::{Client, DaemonState, Served};
use crate::settings::Serve;
use crate::state::DeviceRecord;

/// A user's programs cannot use a device, or not now.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NoAccess {
    #[error(
        "the user or the group of this process is not mapped in its user namespace, and its cuInit would hang, with that of \
         every later client"
    )]
    Unmapped,
    #[error("no daemon serves {name}: {state}")]
    NotServed { name: String, state: &'static str },
    #[error("{name} accepts no programs: {why}")]
    Down {
        name: String,
        why: String,
        /// True if the daemon takes no order to end.
        needs_force: bool,
    },
    /// Programs would run outside MPS.
    #[error("{user} may not enter {}, which leads to the daemon of {name}", closed.display())]
    Closed {
        name: String,
        user: String,
        closed: PathBuf,
    },
    #[error("only {clients} may use {name}, and this is {user}")]
    Reserved {
        name: String,
        clients: String,
        user: String,
    },
    /// Its server had a fault, and takes no clients until those that it has are gone.
    #[error("{name} recovers from a GPU fault, and takes no client until {clients} gone")]
    Faulty { name: String, clients: String },
    /// It serves one user at a time, and another one now.
    #[error("{name} serves {user} now: {clients}")]
    InUse {
        name: String,
        user: String,
        clients: String,
    },
    #[error("{name} has {}, and takes no more", count(*.clients, "client"))]
    Full { name: String, clients: usize },
}

/// The words before the name of a group.
const GROUP: &str = "the group ";

impl NoAccess {
    /// True if it ends when other programs do.
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Faulty { .. } | Self::InUse { .. } | Self::Full { .. }
        )
    }
}

impl Failure for NoAccess {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Unmapped => {
                "map them, as with unshare --map-root-user or the mapping of the container"
                    .to_owned()
            }
            Self::Down {
                name,
                needs_force: true,
                ..
            } => format!("mig-mps restart {name} --force starts a new daemon"),
            Self::NotServed { name, .. } | Self::Down { name, .. } => {
                format!("mig-mps restart {name} starts a new daemon")
            }
            Self::Closed { .. } => {
                "let the user in, or start the daemon in another run directory".to_owned()
            }
            Self::Reserved { clients, .. } => {
                let who = match clients.strip_prefix(GROUP) {
                    Some(_) => "a user of that group".to_owned(),
                    None if caller() == Uid::ROOT => {
                        format!("that user (runuser -u {clients} -- COMMAND)")
                    }
                    None => format!("that user (sudo -u {clients} COMMAND)"),
                };
                format!("run it as {who}, or use another device: mig-mps status")
            }
            Self::Faulty { .. } | Self::InUse { .. } | Self::Full { .. } => {
                "wait for it with --wait 5m, or use another device: mig-mps status".to_owned()
            }
        })
    }
}

/// Refuses to initialise CUDA as a user without a name for the server.
pub fn refuse_unmapped(host: &Host) -> Result<(), NoAccess> {
    if host.caller_is_mapped() {
        Ok(())
    } else {
        Err(NoAccess::Unmapped)
    }
}

/// Checks that programs of a user may become clients of a device now, as far as that can be seen. What is hidden is
/// not held against it: the attach check tells.
pub fn access(served: &Served, user: Uid) -> Result<(), NoAccess> {
    // A daemon that the user cannot reach does not seem to answer.
    check_user(served, user)?;
    check_state(served)?;
    let record = &served.record;
    let clients = served.clients.listed();
    if served.state == DaemonState::Fault {
        let clients = match clients.len() {
            0 => "its clients are".to_owned(),
            1 => format!("{} is", shown(&clients[0])),
            count => format!("its {count} clients are"),
        };
        return Err(NoAccess::Faulty {
            name: record.name.clone(),
            clients,
        });
    }
    let is_shared = record.settings.serve.as_ref().is_some_and(Serve::is_shared);
    let of_another_user = clients
        .iter()
        .find(|client| client.user.is_some_and(|theirs| theirs != user));
    if let Some(other) = of_another_user
        && !is_shared
    {
        let others = clients.len() - 1;
        let more = match others {
            0 => String::new(),
            1 => " and another client".to_owned(),
            _ => format!(" and {others} others"),
        };
        return Err(NoAccess::InUse {
            name: record.name.clone(),
            user: other.user.map(user_name).unwrap_or_default(),
            clients: shown(other) + &more,
        });
    }
    let limit = served.client_limit.map(|limit| limit as usize);
    if limit.is_some_and(|limit| clients.len() >= limit) {
        return Err(NoAccess::Full {
            name: record.name.clone(),
            clients: clients.len(),
        });
    }
    Ok(())
}

/// `pid 812 (python train.py)`
fn shown(client: &Client) -> String {
    let command = client.command.as_deref().unwrap_or("hidden");
    format!("pid {} ({command})", client.shown_pid())
}

fn check_state(served: &Served) -> Result<(), NoAccess> {
    let Some(ailment) = served.state.ailment() else {
        return Ok(());
    };
    Err(NoAccess::Down {
        name: served.record.name.clone(),
        why: match &served.state {
            DaemonState::NoAnswer(why) => format!("{ailment}: {why}"),
            _ => ailment.to_owned(),
        },
        needs_force: matches!(served.state, DaemonState::NoAnswer(_) | DaemonState::Orphan),
    })
}

/// Checks that the daemon is for the user. Root is a client of no user's device: its program would replace the server of
/// that user.
pub(super) fn check_user(served: &Served, user: Uid) -> Result<(), NoAccess> {
    let record = &served.record;
    if let Some(only) = record.only_user().filter(|only| *only != user) {
        return Err(reserved(record, user_name(only), user));
    }
    let control = served.run_dir.pipe_dir(&record.uuid).join("control");
    let Some(closed) = Reader::of(user).is_kept_out_of(&control) else {
        return Ok(());
    };
    Err(match &record.settings.serve {
        Some(Serve::Group(group)) => reserved(record, format!("{GROUP}{group}"), user),
        _ => NoAccess::Closed {
            name: record.name.clone(),
            user: user_name(user),
            closed,
        },
    })
}

fn reserved(record: &DeviceRecord, clients: String, user: Uid) -> NoAccess {
    NoAccess::Reserved {
        name: record.name.clone(),
        clients,
        user: user_name(user),
    }
}
