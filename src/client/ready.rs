use thiserror::Error;

use super::{Attached, ClientLimits, NoAccess, NotAttached, Variables, access, attach_as};
use crate::host::{Environment, Pid, Uid};
use crate::node::{Node, Served, observe_device};
use crate::settings::Serve;

/// A device takes no new clients of a user.
#[derive(Debug, Error)]
pub enum NotReady {
    #[error(transparent)]
    NoAccess(#[from] NoAccess),
    #[error("{name}: {cause}")]
    NotAttached { name: String, cause: NotAttached },
}

impl NotReady {
    /// True if it ends when other programs do.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::NoAccess(error) if error.is_passing())
    }

    /// True if nothing is wrong with the device: it is for other users, or others use it now.
    pub fn is_unchecked(&self) -> bool {
        self.is_passing() || matches!(self, Self::NoAccess(NoAccess::Reserved { .. }))
    }

    /// Returns the remedy, or the way to find one.
    pub fn hint(&self) -> String {
        let general = || "mig-mps doctor finds known causes".to_owned();
        self.remedy().unwrap_or_else(general)
    }

    /// Returns the remedy, if one is known.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::NoAccess(error) => Some(error.hint()),
            Self::NotAttached { cause, .. } => cause.hint(),
        }
    }
}

/// A device takes new clients.
#[derive(Debug)]
pub struct Ready {
    pub attached: Attached,
    pub server: Option<Pid>,
}

/// A full device takes no clients, but it can be checked: the check itself takes no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    Needed,
    NotNeeded,
}

/// Finds out whether a device takes new clients now, of the user that `user_of` returns: first from its processes and a
/// control session, then by becoming a client. The node is one of records alone.
pub fn ready(
    environment: &Environment,
    node: &Node,
    name: &str,
    variables: &Variables,
    slot: Slot,
    user_of: impl Fn(&Environment, &Served) -> Uid,
) -> Result<Ready, NotReady> {
    let observe = || {
        let mut node = node.clone();
        observe_device(environment, &mut node, name);
        node.served.pop().ok_or_else(|| NoAccess::NotServed {
            name: name.to_owned(),
            state: "its record is gone",
        })
    };
    let check = |served: &Served| match access(served, user_of(environment, served)) {
        Err(NoAccess::Full { .. }) if slot == Slot::NotNeeded => Ok(()),
        answer => answer,
    };
    let device = observe()?;
    check(&device)?;
    let user = user_of(environment, &device);
    match attach_as(environment, &device.record, variables, user) {
        Ok(attached) => {
            let server = device.servers.first().map(|server| server.pid);
            Ok(Ready { attached, server })
        }
        Err(cause) => {
            // Another user's program may have come first, and a device that hangs shows it once it is asked.
            if let NotAttached::Late(_) | NotAttached::Failed(_) = cause {
                check(&observe()?)?;
            }
            let name = name.to_owned();
            Err(NotReady::NotAttached { name, cause })
        }
    }
}

/// A device that was checked for its own sake.
#[derive(Debug)]
pub struct Verified {
    pub name: String,
    pub uuid: String,
    pub result: Result<Ready, NotReady>,
}

/// Checks a recorded device without harm to anybody: it takes no client slot, and another user who is served now is left
/// alone.
pub fn verify(environment: &Environment, node: &Node, served: &Served) -> Verified {
    let record = &served.record;
    let logs = environment.logs_of(served.run_dir.path());
    let variables = Variables::of(record, &served.run_dir, logs, &ClientLimits::default());
    let slot = Slot::NotNeeded;
    let name = &record.name;
    Verified {
        name: name.clone(),
        uuid: record.uuid.clone(),
        result: ready(environment, node, name, &variables, slot, harmless_user),
    }
}

/// Returns a user who can check a device without harm: a client of another user would make a user's daemon end
/// its server, and replaces another user's idle server.
fn harmless_user(environment: &Environment, served: &Served) -> Uid {
    if !environment.is_root() {
        return environment.caller;
    }
    let record = &served.record;
    let of_daemon = record.daemon.and_then(|daemon| daemon.user);
    let of_server = served.servers.first().and_then(|server| server.user);
    match &record.settings.serve {
        Some(Serve::User(_) | Serve::Own) => of_daemon.unwrap_or(environment.caller),
        Some(Serve::All | Serve::Group(_)) => environment.caller,
        Some(Serve::OneAtATime) | None => of_server.unwrap_or_else(|| environment.server_user()),
    }
}
