//! The readiness of a device for a user's program: it may be for others, or full, or its daemon may be down. Where nothing of
//! that is seen, the attach check tells whether a process of the user becomes its client.

use std::time::Duration;

use thiserror::Error;

use super::attach::{NotAttached, attach_as};
use super::no_access::{GROUP_PREFIX, NoAccess, describe_client};
use super::{ClientOptions, Variables};
use crate::cuda::CudaError;
use crate::failure::Failure;
use crate::host::{Environment, Host, Pid, Reader, Threads, Uid, user_name};
use crate::node::{
    ANSWER_TIMEOUT, DaemonState, Node, Served, observe_records, observe_without_driver,
};
use crate::settings::Serve;
use crate::state::DeviceRecord;

/// Refuses to initialize CUDA as a user without a name for the server.
pub fn check_user_mapping(host: &Host) -> Result<(), NoAccess> {
    if host.caller_is_mapped() {
        Ok(())
    } else {
        Err(NoAccess::Unmapped)
    }
}

/// Checks that programs of a user may become clients of a device now, as far as that can be seen. What is hidden is
/// not held against it: the attach check tells.
/// `gpus` are the positions of the GPUs that the program sees.
pub fn check_client_access(served: &Served, user: Uid, gpus: &[usize]) -> Result<(), NoAccess> {
    // A daemon that the user cannot reach does not seem to answer.
    check_user(served, user)?;
    check_state(served)?;
    let record = &served.record;
    let name = record.name.clone();
    let clients = served.clients.as_slice();
    if served.state == DaemonState::Fault {
        let clients = match clients.len() {
            _ if record.key.is_joint() => "its clients on the faulty GPU have".to_owned(),
            0 => "its clients have".to_owned(),
            1 => format!("{} has", describe_client(&clients[0])),
            count => format!("its {count} clients have"),
        };
        return Err(NoAccess::Faulty { name, clients });
    }
    let is_shared = record.settings.serve.as_ref().is_some_and(Serve::is_shared);
    if !is_shared
        && let Some(other) = clients
            .iter()
            .find(|client| client.user.is_some_and(|theirs| theirs != user))
    {
        let others = clients.len() - 1;
        let more = match others {
            0 => String::new(),
            1 => " and another client".to_owned(),
            _ => format!(" and {others} others"),
        };
        return Err(NoAccess::InUse {
            name,
            user: other.user.map(user_name).unwrap_or_default(),
            clients: describe_client(other) + &more,
        });
    }
    match served.find_full_part(gpus) {
        Some((part, clients)) => Err(NoAccess::Full { part, clients }),
        None => Ok(()),
    }
}

fn check_state(served: &Served) -> Result<(), NoAccess> {
    if let (Some(closing), Some(change)) = (served.closing(), served.describe_closing()) {
        return Err(NoAccess::Closing {
            name: served.record.name.clone(),
            change,
            opens_again: closing.next.is_some(),
            is_left_to_heal: served.is_left_to_heal(),
        });
    }
    let Some(ailment) = served.state.outage_reason() else {
        return Ok(());
    };
    Err(NoAccess::Down {
        name: served.record.name.clone(),
        why: match &served.state {
            DaemonState::NoAnswer(why) => format!("{ailment} ({why})"),
            _ => ailment.to_owned(),
        },
        needs_force: matches!(
            served.state,
            DaemonState::NoAnswer(_) | DaemonState::Orphan | DaemonState::Suspended
        ),
    })
}

/// Checks that the daemon is for the user. Root is a client of no user's device: its program would replace the server of
/// that user.
pub fn check_user(served: &Served, user: Uid) -> Result<(), NoAccess> {
    let record = &served.record;
    if let Some(only) = record.only_user().filter(|only| *only != user) {
        return Err(reserved_error(record, user_name(only), user));
    }
    let Some(closed) = served.find_closed_directory(&Reader::from_account(user)) else {
        return Ok(());
    };
    Err(match &record.settings.serve {
        Some(Serve::Group(group)) => reserved_error(record, format!("{GROUP_PREFIX}{group}"), user),
        _ => NoAccess::Closed {
            name: record.name.clone(),
            user: user_name(user),
            closed,
        },
    })
}

fn reserved_error(record: &DeviceRecord, clients: String, user: Uid) -> NoAccess {
    NoAccess::Reserved {
        name: record.name.clone(),
        clients,
        user: user_name(user),
    }
}

/// A device takes no new clients of a user.
#[derive(Debug, Error)]
pub enum NotReady {
    #[error(transparent)]
    NoAccess(#[from] NoAccess),
    #[error("device {name}: {cause}")]
    NotAttached { name: String, cause: NotAttached },
}

impl NotReady {
    /// True if it ends when other programs do.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::NoAccess(error) if error.is_temporary())
    }

    /// True if it admits no new programs, and those that start get an error.
    pub fn is_closing(&self) -> bool {
        matches!(self, Self::NoAccess(NoAccess::Closing { .. }))
    }

    /// True if nothing is wrong with the device: it is for other users, others use it now, or it is closed to new programs.
    pub fn is_unchecked(&self) -> bool {
        let is_for_others = |error: &NoAccess| {
            matches!(error, NoAccess::Reserved { .. } | NoAccess::Closing { .. })
        };
        self.is_temporary() || matches!(self, Self::NoAccess(error) if is_for_others(error))
    }
}

impl Failure for NotReady {
    fn hint(&self) -> Option<String> {
        let known = match self {
            Self::NoAccess(error) => error.hint(),
            Self::NotAttached { cause, .. } => cause.hint(),
        };
        known.or_else(|| Some("run `mig-mps doctor` to find known causes".to_owned()))
    }
}

/// A device takes new clients: a process became one.
#[derive(Debug)]
pub struct Ready {
    pub user: Uid,
    /// The SMs that it may use.
    pub sm_count: u32,
    /// The time that `cuInit` took.
    pub time: Duration,
    /// The server; `None` if there was none before.
    pub server: Option<Pid>,
}

/// A full device takes no clients, but it can be checked: the check itself takes no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientSlot {
    Needed,
    NotNeeded,
}

/// Finds out whether a device takes new clients now, of the user that `user_of` returns: first from its processes and a
/// control session, then by becoming a client. The node is one of records alone.
pub fn check_ready(
    environment: &Environment,
    node: &Node,
    name: &str,
    variables: &Variables,
    slot: ClientSlot,
    user_of: impl Fn(&Environment, &Served) -> Uid,
) -> Result<Ready, NotReady> {
    let is_changing = |error: NoAccess| {
        let now = observe_records(environment).ok();
        error.during_change(now.as_ref().unwrap_or(node))
    };
    let device = observe_device(environment, node, name).map_err(is_changing)?;
    let user = user_of(environment, &device);
    let gpus = variables.visible_gpus(&device.record);
    check_access_for_slot(&device, user, slot, &gpus).map_err(is_changing)?;
    let cause = match attach_as(environment, &device, variables, user) {
        Ok(ready) => return Ok(ready),
        Err(cause) => cause,
    };
    // Another user's program may have come first, and a device that hangs shows it once it is asked.
    if let NotAttached::Late(_) | NotAttached::Failed(_) = cause {
        let device = observe_device(environment, node, name).map_err(is_changing)?;
        let user = user_of(environment, &device);
        check_access_for_slot(&device, user, slot, &gpus).map_err(is_changing)?;
    }
    let name = name.to_owned();
    if let NotAttached::Failed(CudaError::CONNECTION_FAILED) = cause {
        // So a daemon answers that is about to end.
        let why = cause.to_string();
        let down = NoAccess::Down {
            name: name.clone(),
            why,
            needs_force: false,
        };
        if let changing @ NoAccess::Changing { .. } = is_changing(down) {
            return Err(changing.into());
        }
    }
    Err(NotReady::NotAttached { name, cause })
}

/// Returns the device as its processes and a control session show it now.
pub(super) fn observe_device(
    environment: &Environment,
    node: &Node,
    name: &str,
) -> Result<Served, NoAccess> {
    let mut node = node.clone();
    node.devices.retain(|device| device.name == name);
    observe_without_driver(environment, &mut node, ANSWER_TIMEOUT);
    let served = node.devices.pop().and_then(|device| device.served);
    let mut served = served.ok_or_else(|| NoAccess::NotServed {
        name: name.to_owned(),
        state: "its record no longer exists",
    })?;
    served.find_client_gpus(environment.nvml_library.as_deref());
    Ok(served)
}

fn check_access_for_slot(
    served: &Served,
    user: Uid,
    slot: ClientSlot,
    gpus: &[usize],
) -> Result<(), NoAccess> {
    match check_client_access(served, user, gpus) {
        Err(NoAccess::Full { .. }) if slot == ClientSlot::NotNeeded => Ok(()),
        answer => answer,
    }
}

/// A device that was checked for its own sake.
#[derive(Debug)]
pub struct Verified {
    pub name: String,
    pub uuid: String,
    pub result: Result<Ready, NotReady>,
}

/// Checks recorded devices side by side without harm to anybody: as this user, or as one for each device, so that another
/// user who is served now is left alone. That takes no client slot.
pub fn verify_devices(
    environment: &Environment,
    node: &Node,
    devices: Vec<&Served>,
    user: Option<Uid>,
) -> Vec<Verified> {
    let others = devices.len().saturating_sub(1);
    Threads::with_limit(others).map_in_parallel(devices, |served| {
        let record = &served.record;
        let variables = Variables::for_device(environment, served, &ClientOptions::default());
        let result = check_ready(
            environment,
            node,
            &record.name,
            &variables,
            ClientSlot::NotNeeded,
            |environment, served| user.unwrap_or_else(|| user_for_check(environment, served)),
        );
        Verified {
            name: record.name.clone(),
            uuid: record.uuid.clone(),
            result: result.and_then(|ready| {
                check_users_may_enter(served)
                    .map(|()| ready)
                    .map_err(Into::into)
            }),
        }
    })
}

/// Checks that the users of the device may enter its directories. Root may enter any.
fn check_users_may_enter(served: &Served) -> Result<(), NoAccess> {
    let users = served.served_users();
    let Some(closed) = users.and_then(|users| served.find_closed_directory(&users)) else {
        return Ok(());
    };
    let record = &served.record;
    let user = match &record.settings.serve {
        Some(Serve::User(name)) => name.clone(),
        Some(Serve::Group(name)) => format!("{GROUP_PREFIX}{name}"),
        Some(Serve::Own) => record.only_user().map(user_name).unwrap_or_default(),
        Some(Serve::All | Serve::OneAtATime) | None => "the users of the device".to_owned(),
    };
    let name = record.name.clone();
    Err(NoAccess::Closed { name, user, closed })
}

/// Returns a user who can check a device without harm: a client of another user replaces an idle server.
pub(super) fn user_for_check(environment: &Environment, served: &Served) -> Uid {
    if !environment.is_root() {
        return environment.caller;
    }
    let record = &served.record;
    let of_server = served.servers.first().and_then(|server| server.user);
    match &record.settings.serve {
        Some(Serve::User(_) | Serve::Own) => record.only_user().unwrap_or(environment.caller),
        Some(Serve::All | Serve::Group(_)) => environment.caller,
        Some(Serve::OneAtATime) | None => of_server.unwrap_or_else(|| environment.server_user()),
    }
}
