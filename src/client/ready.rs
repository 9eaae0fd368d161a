//! The attach check: does a program of this user become a client of a device now?

use std::process::Command;
use std::time::Duration;

use thiserror::Error;

use super::{ClientLimits, NoAccess, Variables, access};
use crate::config::CUDA_LIBRARY;
use crate::cuda::{AttachResult, CudaError};
use crate::failure::Failure;
use crate::host::{
    ATTACH, Account, BecomeUser, Environment, Output, Pid, RunError, Uid, bounded, caller, run_as,
};
use crate::node::{Node, Served, observe_device};
use crate::settings::Serve;
use crate::state::DeviceRecord;

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

    /// Returns the remedy, if one is known.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::NoAccess(error) => error.hint(),
            Self::NotAttached { cause, .. } => cause.hint(),
        }
    }
}

impl Failure for NotReady {
    fn hint(&self) -> Option<String> {
        let general = "mig-mps doctor finds known causes";
        self.remedy().or_else(|| Some(general.to_owned()))
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
pub enum ClientSlot {
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
    slot: ClientSlot,
    user_of: impl Fn(&Environment, &Served) -> Uid,
) -> Result<Ready, NotReady> {
    let device = observed(environment, node, name)?;
    let user = user_of(environment, &device);
    check_access(&device, user, slot)?;
    match attach_as(environment, &device.record, variables, user) {
        Ok(attached) => {
            let server = device.servers.first().map(|server| server.pid);
            Ok(Ready { attached, server })
        }
        Err(cause) => {
            // Another user's program may have come first, and a device that hangs shows it once it is asked.
            if let NotAttached::Late(_) | NotAttached::Failed(_) = cause {
                let device = observed(environment, node, name)?;
                check_access(&device, user_of(environment, &device), slot)?;
            }
            let name = name.to_owned();
            Err(NotReady::NotAttached { name, cause })
        }
    }
}

/// Returns the device as its processes and a control session show it now.
fn observed(environment: &Environment, node: &Node, name: &str) -> Result<Served, NoAccess> {
    let mut node = node.clone();
    observe_device(environment, &mut node, name);
    let served = node.devices.pop().and_then(|device| device.served);
    served.ok_or_else(|| NoAccess::NotServed {
        name: name.to_owned(),
        state: "its record is gone",
    })
}

fn check_access(served: &Served, user: Uid, slot: ClientSlot) -> Result<(), NoAccess> {
    match access(served, user) {
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

/// Checks a recorded device without harm to anybody: it takes no client slot, and another user who is served now is left
/// alone.
pub fn verify(environment: &Environment, node: &Node, served: &Served) -> Verified {
    let record = &served.record;
    let logs = environment.logs_of(served.run_dir.path());
    let variables = Variables::of(record, &served.run_dir, logs, &ClientLimits::default());
    let slot = ClientSlot::NotNeeded;
    let name = &record.name;
    Verified {
        name: name.clone(),
        uuid: record.uuid.clone(),
        result: ready(environment, node, name, &variables, slot, harmless_user),
    }
}

/// Returns a user who can check a device without harm: a client of another user replaces an idle server.
fn harmless_user(environment: &Environment, served: &Served) -> Uid {
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
const LIMIT: Duration = Duration::from_secs(10);

/// The name of the check in errors.
const CHECK: &str = "the attach check";

/// The variables of the caller that the check keeps: programs of the caller would find libcuda by them.
const KEPT: [&str; 2] = ["PATH", "LD_LIBRARY_PATH"];

/// A process became an MPS client of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    pub user: Uid,
    /// The SMs that it may use.
    pub sm_count: u32,
    /// The time that `cuInit` took.
    pub time: Duration,
}

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
            Self::Failed(_) | Self::OutsideMps | Self::AnotherDevice(_) | Self::Unexpected(_) => {
                return None;
            }
        };
        Some(hint.to_owned())
    }
}

/// Starts a process that initialises CUDA with these variables as this user, and ends it at its limit. It makes no
/// context and takes no client slot.
pub fn attach_as(
    environment: &Environment,
    record: &DeviceRecord,
    variables: &Variables,
    user: Uid,
) -> Result<Attached, NotAttached> {
    let mut command = Command::new(&environment.helper);
    command.arg(ATTACH).args(becoming(user).words()).env_clear();
    command.envs(
        KEPT.iter()
            .filter_map(|name| Some((name, std::env::var_os(name)?))),
    );
    let library = environment.cuda_library.as_ref();
    command.envs(library.map(|library| (CUDA_LIBRARY, library)));
    command.envs(variables.set.iter().map(|(name, value)| (name, value)));
    let output = run_as(CHECK.to_owned(), &command, "", LIMIT).map_err(|error| match error {
        RunError::Late { limit, .. } => NotAttached::Late(limit),
        error => error.into(),
    })?;
    match read(&output)? {
        AttachResult::NoLibrary(error) => Err(NotAttached::NoLibrary(bounded(&error).into_owned())),
        AttachResult::Failed(error) => Err(NotAttached::Failed(error)),
        AttachResult::Initialised {
            is_client: false, ..
        } => Err(NotAttached::OutsideMps),
        AttachResult::Initialised { uuid, .. } if !is_of(record, uuid) => {
            Err(NotAttached::AnotherDevice(spelled(uuid)))
        }
        AttachResult::Initialised { sm_count, time, .. } => Ok(Attached {
            user,
            sm_count,
            time,
        }),
    }
}

/// Returns the arguments by which the check becomes this user; none for the caller.
fn becoming(user: Uid) -> BecomeUser {
    if user == caller() {
        return BecomeUser::default();
    }
    let account = Account::of(user).ok().flatten();
    BecomeUser {
        uid: Some(user.0),
        // A user without an account has no group of its own.
        gid: Some(account.as_ref().map_or(user.0, |account| account.gid)),
        groups_of: account.map(|account| account.name),
    }
}

fn read(output: &Output) -> Result<AttachResult, NotAttached> {
    let answer = output.stdout.trim();
    serde_json::from_str(answer).map_err(|_| {
        let said = [answer, output.stderr.trim()].join(" ");
        NotAttached::Unexpected(bounded(said.trim()).into_owned())
    })
}

/// True if a UUID without its prefix is the device's, or that of its GPU: older drivers have no other.
fn is_of(record: &DeviceRecord, uuid: [u8; 16]) -> bool {
    let digits = digits(uuid);
    for known in [&record.uuid, &record.key.gpu] {
        let (_, known_digits) = known.split_once('-').unwrap_or_default();
        if known_digits.replace('-', "").eq_ignore_ascii_case(&digits) {
            return true;
        }
    }
    false
}

fn digits(uuid: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(uuid))
}

fn spelled(uuid: [u8; 16]) -> String {
    let digits = digits(uuid);
    [0..8, 8..12, 12..16, 16..20, 20..32]
        .map(|range| &digits[range])
        .join("-")
}
