use std::process::Command;
use std::time::Duration;

use thiserror::Error;

use super::Variables;
use crate::config::CUDA_LIBRARY;
use crate::cuda::{AttachResult, CudaError};
use crate::host::{
    ATTACH, Account, Environment, Limits, Output, RunError, Uid, bounded, caller, run_as,
};
use crate::state::DeviceRecord;

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

impl NotAttached {
    /// Returns the remedy, if one is known.
    pub fn hint(&self) -> Option<String> {
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
            Self::Check(error) => error.hint(),
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
    command.args(limits(user).words(ATTACH)).env_clear();
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

/// The limits of a process that runs as this user.
fn limits(user: Uid) -> Limits {
    if user == caller() {
        return Limits::default();
    }
    let account = Account::of(user).ok().flatten();
    Limits {
        uid: Some(user.0),
        // A user without an account has no group of its own.
        gid: Some(account.as_ref().map_or(user.0, |account| account.gid)),
        groups_of: account.map(|account| account.name),
        ..Limits::default()
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
    let known = [&record.uuid, &record.key.gpu];
    known.iter().any(|known| {
        let known = known.split_once('-').map_or("", |(_, rest)| rest);
        known.replace('-', "").eq_ignore_ascii_case(&digits)
    })
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
