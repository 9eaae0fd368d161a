//! The readiness of a device for a user's program: it may be for others, or full, or its daemon may be down. Where nothing of
//! that is seen, the attach check tells whether a process of the user becomes its client.

use std::process::Command;
use std::time::Duration;

use thiserror::Error;

use super::no_access::{GROUP_PREFIX, NoAccess, describe_client};
use super::{ClientOptions, Variables};
use crate::config::CUDA_LIBRARY;
use crate::cuda::{AttachResult, CudaError};
use crate::failure::Failure;
use crate::host::{
    ATTACH, Account, BecomeUser, Environment, HeldProgram, Host, Pid, Reader, RunError, Threads,
    Uid, caller, clean_command, run_with_name, shorten_command, user_name,
};
use crate::node::{
    ANSWER_TIMEOUT, Closer, DaemonState, Node, Served, observe_records, observe_without_driver,
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
            _ if record.key.is_joint() => "its clients on the faulty GPU are".to_owned(),
            0 => "its clients are".to_owned(),
            1 => format!("{} is", describe_client(&clients[0])),
            count => format!("its {count} clients are"),
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
        Some((name, clients)) => Err(NoAccess::Full { name, clients }),
        None => Ok(()),
    }
}

fn check_state(served: &Served) -> Result<(), NoAccess> {
    // Where nobody goes on with it, a restart does.
    let is_left_behind = served.closer == Closer::Gone && !served.is_alive();
    if let Some(closing) = served.closing().filter(|_| !is_left_behind) {
        return Err(NoAccess::Closing {
            name: served.record.name.clone(),
            closing: closing.to_string(),
            opens_again: closing.next.is_some(),
            instead: None,
        });
    }
    let Some(ailment) = served.state.outage_reason() else {
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
    #[error("{name}: {cause}")]
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
        known.or_else(|| Some("mig-mps doctor finds known causes".to_owned()))
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
        state: "its record is gone",
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
        Some(Serve::All | Serve::OneAtATime) | None => "its users".to_owned(),
    };
    let name = record.name.clone();
    Err(NoAccess::Closed { name, user, closed })
}

/// Returns a user who can check a device without harm: a client of another user replaces an idle server.
fn user_for_check(environment: &Environment, served: &Served) -> Uid {
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

/// The time that `cuInit` may take. It took 10 to 18 ms on an H200, and a server that has to start adds 0.3 s; where
/// many start at once, each waits for the others.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

/// The name of the check in errors.
const CHECK: &str = "the attach check";

/// The variables of the caller that the check keeps: programs of the caller would find libcuda by them.
const KEPT_VARIABLES: [&str; 2] = ["PATH", "LD_LIBRARY_PATH"];

/// No process becomes an MPS client of a device.
#[derive(Debug, Error)]
pub enum NotAttached {
    #[error("CUDA takes programs for ones outside MPS, though the daemon runs")]
    OutsideMps,
    #[error("cuInit fails with {0}")]
    Failed(CudaError),
    /// It hangs, or waits for another user's programs to exit.
    #[error("cuInit does not return within {} s", .0.as_secs())]
    Late(Duration),
    #[error("CUDA shows another device: {0}")]
    AnotherDevice(String),
    #[error("CUDA shows {seen} of {gpus} GPUs")]
    OtherCount { seen: usize, gpus: usize },
    #[error("libcuda cannot be loaded: {0}")]
    NoLibrary(String),
    #[error(transparent)]
    Check(#[from] RunError),
    #[error("{CHECK} answered {0:?}")]
    Unexpected(String),
}

impl Failure for NotAttached {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Failed(CudaError::CONNECTION_FAILED) => {
                "the daemon is about to stop, or has just stopped: mig-mps status"
            }
            Self::Failed(CudaError::NO_DEVICE) => {
                "the device is gone, or the driver does not show it here: mig-mps status"
            }
            Self::Late(_) => "mig-mps status tells whether the device hangs or serves another user",
            Self::NoLibrary(_) => {
                "install the NVIDIA driver, or set MIG_MPS_CUDA_LIBRARY to the path of libcuda.so.1"
            }
            Self::Check(error) => return error.hint(),
            Self::Failed(_)
            | Self::OutsideMps
            | Self::AnotherDevice(_)
            | Self::OtherCount { .. }
            | Self::Unexpected(_) => {
                return None;
            }
        };
        Some(hint.to_owned())
    }
}

/// Starts a process that initializes CUDA with these variables as this user, and ends it at its limit. It makes no
/// context and takes no client slot.
fn attach_as(
    environment: &Environment,
    device: &Served,
    variables: &Variables,
    user: Uid,
) -> Result<Ready, NotAttached> {
    let command = attach_command(environment, variables, user);
    let output = run_with_name(CHECK.to_owned(), &command, "", ATTACH_TIMEOUT).map_err(
        |error| match error {
            RunError::Late { limit, .. } => NotAttached::Late(limit),
            error => error.into(),
        },
    )?;
    let answer = parse_attach_result(&output.stdout, &output.stderr)?;
    judge_attach_result(device, variables, user, answer)
}

/// A client of a device that computes nothing. While it is there, a daemon that admits no new clients does not end, and nobody
/// finds the device without one.
#[derive(Debug)]
pub struct HeldClient(#[expect(dead_code, reason = "it is held, not read")] HeldProgram);

impl HeldClient {
    /// Starts it as a user that disturbs nobody.
    pub fn start(environment: &Environment, device: &Served) -> Result<Self, NotAttached> {
        let user = user_for_check(environment, device);
        let variables = Variables::for_device(environment, device, &ClientOptions::default());
        let mut command = attach_command(environment, &variables, user);
        command.arg("--hold");
        let (held, line) = HeldProgram::start(CHECK, &command, ATTACH_TIMEOUT)?;
        let answer = parse_attach_result(&line, "")?;
        judge_attach_result(device, &variables, user, answer).map(|_| Self(held))
    }
}

/// Returns the command of the attach check.
fn attach_command(environment: &Environment, variables: &Variables, user: Uid) -> Command {
    let mut command = clean_command(&environment.helper, &KEPT_VARIABLES);
    command.arg(ATTACH).args(become_user_args(user).to_args());
    let library = environment.cuda_library.as_ref();
    command.envs(library.map(|library| (CUDA_LIBRARY, library)));
    command.envs(variables.set.iter().map(|(name, value)| (name, value)));
    command
}

/// Judges whether the process became a client of this device, on the GPUs in these variables.
fn judge_attach_result(
    device: &Served,
    variables: &Variables,
    user: Uid,
    result: AttachResult,
) -> Result<Ready, NotAttached> {
    match result {
        AttachResult::NoLibrary(error) => {
            Err(NotAttached::NoLibrary(shorten_command(&error).into_owned()))
        }
        AttachResult::Failed(error) => Err(NotAttached::Failed(error)),
        AttachResult::Initialized {
            is_client: false, ..
        } => Err(NotAttached::OutsideMps),
        AttachResult::Initialized {
            uuids,
            sm_count,
            time,
            ..
        } => {
            let mut others = uuids
                .iter()
                .filter(|uuid| !has_uuid(&device.record, **uuid));
            if let Some(other) = others.next() {
                return Err(NotAttached::AnotherDevice(format_uuid(*other)));
            }
            let gpus = variables.visible_gpus(&device.record).len();
            if uuids.len() != gpus {
                return Err(NotAttached::OtherCount {
                    seen: uuids.len(),
                    gpus,
                });
            }
            Ok(Ready {
                user,
                sm_count,
                time,
                server: device.servers.first().map(|server| server.pid),
            })
        }
    }
}

/// Returns the arguments by which the check becomes this user; none for the caller.
fn become_user_args(user: Uid) -> BecomeUser {
    if user == caller() {
        return BecomeUser::default();
    }
    let account = Account::from_uid(user).ok().flatten();
    // A user without an account has no group of its own.
    let gid = account.as_ref().map_or(user.0, |account| account.gid);
    let groups = account.and_then(|account| account.look_up_groups().ok());
    BecomeUser {
        uid: Some(user.0),
        gid: Some(gid),
        groups: groups.unwrap_or_else(|| vec![gid]),
        as_caller: false,
    }
}

fn parse_attach_result(stdout: &str, stderr: &str) -> Result<AttachResult, NotAttached> {
    let answer = stdout.trim();
    serde_json::from_str(answer).map_err(|_| {
        let said = [answer, stderr.trim()].join(" ");
        NotAttached::Unexpected(shorten_command(said.trim()).into_owned())
    })
}

/// True if a UUID without its prefix is the device's, or that of its GPU: older drivers have no other.
fn has_uuid(record: &DeviceRecord, uuid: [u8; 16]) -> bool {
    let digits = uuid_digits(uuid);
    let known = record.driver_uuids().iter().chain([&record.key.gpu]);
    known.into_iter().any(|known| {
        let (_, known) = known.split_once('-').unwrap_or_default();
        known.replace('-', "").eq_ignore_ascii_case(&digits)
    })
}

fn uuid_digits(uuid: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(uuid))
}

fn format_uuid(uuid: [u8; 16]) -> String {
    let digits = uuid_digits(uuid);
    [0..8, 8..12, 12..16, 16..20, 20..32]
        .map(|range| &digits[range])
        .join("-")
}
