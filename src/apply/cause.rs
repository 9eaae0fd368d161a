//! The reason for the failure of a step, with its remedy.

use std::sync::LazyLock;

use regex::Regex;
use thiserror::Error;

use crate::failure::{Failure, OTHER_PROGRAMS};
use crate::host::{
    EnvironmentError, FileError, Holder, LimitsError, MORE_PROCESSES, RunError, ToolError,
};
use crate::mps::MpsError;
use crate::nvml::{Code, MigMode, NvmlError};

/// The reason for the failure of a step.
#[derive(Debug, Error)]
pub enum Cause {
    /// An NVML call failed.
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    /// The driver reported an instance as in use until the time limit.
    #[error("{error}: {}", held_by(holders, 0))]
    InUse {
        /// The driver's last answer.
        error: NvmlError,
        /// The visible processes that use it.
        holders: Vec<Holder>,
        /// True if monitoring services are stopped where they are in the way.
        stops_services: bool,
    },
    /// The driver offers no MIG on a GPU of a model that has it.
    #[error("{error}")]
    NoMig {
        error: NvmlError,
        /// The likely cause and its remedy.
        hint: String,
    },
    /// MIG mode does not change while the GPU is in use.
    #[error("the GPU is in use: {}", held_by(holders, *hidden))]
    Busy {
        /// The visible processes that use it.
        holders: Vec<Holder>,
        /// The number of processes that could not be inspected.
        hidden: usize,
        /// True if monitoring services are stopped where they are in the way.
        stops_services: bool,
    },
    /// A command to the control daemon failed.
    #[error(transparent)]
    Mps(#[from] MpsError),
    /// A request to systemd failed.
    #[error(transparent)]
    Units(#[from] ToolError),
    /// A process holds the GPU, so it cannot be reset.
    #[error("{error}: {}", held_by(holders, 0))]
    Reset {
        /// The error of nvidia-smi.
        error: ToolError,
        /// The visible processes that hold it.
        holders: Vec<Holder>,
    },
    /// A program is missing.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The server still lists a client that it has terminated.
    #[error(
        "the server ended the client, but still lists it because the process has made no CUDA call since"
    )]
    StillClient,
    /// A process did not exit after a signal.
    #[error("its GPU work was ended, but the process is still running {} s after {signal}", after.as_secs())]
    StillThere {
        /// The signal's name.
        signal: &'static str,
        /// The time waited for its exit.
        after: std::time::Duration,
    },
    /// A file could not be read or written.
    #[error("{0}")]
    File(#[from] FileError),
    /// NVML accepted the MIG mode, but it is not active.
    #[error("{what}")]
    NotActive {
        what: String,
        /// True if a reset may activate it, which the user has not allowed; false if a reboot is due.
        awaits_reset: bool,
    },
    /// A start failed, and so did stopping what it had started.
    #[error("{cause}\nand the cleanup failed: {cleanup}")]
    CleanupFailed {
        /// The reason for the failed start.
        cause: Box<Cause>,
        /// The reason for the failed stop.
        cleanup: Box<Cause>,
    },
    /// MIG mode stays on, for this reason.
    #[error("MIG mode is still on, because {0}")]
    LeftOn(&'static str),
    /// A change of the MIG mode stays pending.
    #[error("the MIG mode change is pending until a reset of the GPU or a reboot")]
    Pending,
    /// The device does not exist.
    #[error("the device no longer exists")]
    NoDevice,
    /// The GPU instance does not exist.
    #[error("its GPU instance no longer exists")]
    NoInstance,
    /// A user or group of the profile does not exist.
    #[error("there is no {what} \"{name}\" on this machine")]
    NoAccount { what: &'static str, name: String },
    /// A user or group has another id than the one that the daemon serves.
    #[error("the {what} {name} now has the id {is}, but the daemon serves the id {was}")]
    OtherId {
        what: &'static str,
        name: String,
        is: u32,
        was: u32,
    },
    /// The file system of a directory lets no single user in.
    #[error("{0}")]
    NoLists(FileError),
    /// The system does not allow a limit.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// Another reason, which nothing depends on.
    #[error("{0}")]
    Other(String),
    /// The user interrupted the wait.
    #[error("interrupted")]
    Interrupted,
}

/// `held by pid 4711 (alice, python, session-3.scope)`
fn held_by(holders: &[Holder], hidden: usize) -> String {
    let names: Vec<String> = holders.iter().map(Holder::to_string).collect();
    let unseen = format!("{hidden} processes could not be inspected");
    match (names.as_slice(), hidden) {
        ([], 0) => "no visible process keeps it open".to_owned(),
        ([], _) => format!("no visible process keeps it open, and {unseen}"),
        (names, 0) => format!("kept open by {}", names.join(", ")),
        (names, _) => format!("kept open by {}; {unseen}", names.join(", ")),
    }
}

impl Cause {
    /// Adds the result of cleaning up after this failure.
    #[must_use]
    pub(super) fn with_cleanup(self, cleaned_up: Result<(), Self>) -> Self {
        match cleaned_up {
            Ok(()) => self,
            Err(cleanup) => Self::CleanupFailed {
                cause: Box::new(self),
                cleanup: Box::new(cleanup),
            },
        }
    }

    /// The mode reads back like this after NVML's `activationStatus`, and after a reset that did not help, or failed, for
    /// this reason.
    pub(super) fn not_active(activation: Code, mode: MigMode, after_reset: Option<&str>) -> Self {
        let pending = if mode.pending == mode.current {
            "the driver did not accept the MIG mode change"
        } else {
            "the MIG mode change is pending"
        };
        let what = format!("{pending}: {activation}");
        Self::NotActive {
            awaits_reset: after_reset.is_none(),
            what: match after_reset {
                Some(why) => format!("{what}; {why}"),
                None => what,
            },
        }
    }

    /// Returns the message without the UUIDs in it, which differ between equal causes.
    pub(super) fn without_device(&self) -> String {
        static UUID: LazyLock<Option<Regex>> =
            LazyLock::new(|| Regex::new("(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{27}").ok());
        match UUID.as_ref() {
            Some(uuid) => uuid.replace_all(&self.to_string(), "it").into_owned(),
            None => self.to_string(),
        }
    }

    /// Returns the message without the processes that hold a GPU, if it names some.
    pub(super) fn without_holders(&self) -> Option<String> {
        let named = match self {
            Self::Busy { holders, .. } => ("the GPU is in use".to_owned(), holders),
            Self::InUse { error, holders, .. } => (error.to_string(), holders),
            Self::Reset { error, holders } => (error.to_string(), holders),
            // Only a failed cause names holders: what is ended afterwards is a daemon, or a pending change.
            Self::CleanupFailed { cause, .. } => return cause.without_holders(),
            _ => return None,
        };
        let (what, holders) = named;
        (!holders.is_empty()).then(|| format!("{what}: kept open by {OTHER_PROGRAMS}"))
    }

    /// True if the step may have taken effect despite the error.
    pub(super) fn may_have_worked(&self) -> bool {
        match self {
            Self::Nvml(error) => error.may_have_worked(),
            _ => false,
        }
    }

    /// True if the system refuses new threads or processes.
    pub(super) fn lacks_processes(&self) -> bool {
        match self {
            Self::Nvml(NvmlError::NoThread { .. }) => true,
            Self::Mps(MpsError::Program(RunError::Start { error, .. })) | Self::File(error) => {
                error.kind() == std::io::ErrorKind::WouldBlock
            }
            Self::CleanupFailed { cause, cleanup } => {
                cause.lacks_processes() || cleanup.lacks_processes()
            }
            _ => false,
        }
    }
}

impl Failure for Cause {
    fn hint(&self) -> Option<String> {
        match self {
            cause if cause.lacks_processes() => Some(MORE_PROCESSES.to_owned()),
            Self::Nvml(error) => error.hint(),
            Self::NoMig { hint, .. } => Some(hint.clone()),
            Self::Mps(error) => error.hint(),
            Self::Units(error) | Self::Reset { error, .. } => error.hint(),
            Self::Environment(error) => error.hint(),
            Self::InUse { holders, stops_services, .. }
                if !stops_services && holders.iter().any(Holder::is_monitoring) =>
            {
                Some(Holder::release_hint(holders, false).to_owned())
            }
            Self::InUse { holders, .. } if holders.is_empty() => {
                Some(Holder::release_hint(holders, true).to_owned())
            }
            Self::InUse { .. } => Some(
                "wait for these processes to exit, then run the same command again to continue".to_owned(),
            ),
            Self::Busy { holders, stops_services, .. } => {
                Some(Holder::release_hint(holders, *stops_services).to_owned())
            }
            Self::NotActive { awaits_reset: true, .. } => Some(
                "run the command again with --reset, which resets only this GPU, or reboot and run it again; in a \
                 virtual machine only a reboot helps"
                    .to_owned(),
            ),
            Self::NotActive { .. } => {
                Some("reboot, then run the same command again to continue".to_owned())
            }
            Self::StillClient => Some(
                "add --signal to end the process; otherwise it leaves the list with its next CUDA call".to_owned(),
            ),
            Self::StillThere { signal: "SIGTERM", .. } => Some(
                "use --signal=KILL to stop it at once, but it may be saving data".to_owned(),
            ),
            Self::StillThere { .. } => Some(
                "search the kernel log for the call that hangs; the process exits when the call returns".to_owned(),
            ),
            Self::CleanupFailed { cause, .. } => cause.hint(),
            Self::File(error) => error.hint(),
            Self::NoDevice | Self::NoInstance => {
                Some("run the same command again to make a new plan".to_owned())
            }
            Self::NoAccount { what, .. } => Some(format!(
                "create the {what}, or change the profile"
            )),
            Self::OtherId { .. } => Some(
                "run `mig-mps restart DEVICE` to start a daemon that serves the new id".to_owned(),
            ),
            Self::NoLists(_) => Some(
                "set MIG_MPS_RUN_DIR and MIG_MPS_LOG_DIR to directories on tmpfs, ext4 or xfs, or serve a group that \
                 has only this member"
                    .to_owned(),
            ),
            Self::Limits(error) => error.hint(),
            Self::LeftOn(_) | Self::Pending | Self::Other(_) | Self::Interrupted => None,
        }
    }
}
