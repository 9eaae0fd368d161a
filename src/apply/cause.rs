//! The reason for the failure of a step, and its remedy.

use thiserror::Error;

use crate::host::{
    EnvironmentError, Holder, MORE_PROCESSES, ResetError, RunError, UnitsError, file_hint,
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
    },
    /// MIG mode does not change while the GPU is in use.
    #[error("the GPU is in use: {}", held_by(holders, *hidden))]
    Busy {
        /// The requested mode.
        on: bool,
        /// The visible processes that use it.
        holders: Vec<Holder>,
        /// The number of processes that could not be inspected.
        hidden: usize,
    },
    /// A command to the control daemon failed.
    #[error(transparent)]
    Mps(#[from] MpsError),
    /// A request to systemd failed.
    #[error(transparent)]
    Units(#[from] UnitsError),
    /// A process holds the GPU, so it cannot be reset.
    #[error("{error}: {}", held_by(holders, 0))]
    Reset {
        /// The error of nvidia-smi.
        error: ResetError,
        /// The visible processes that hold it.
        holders: Vec<Holder>,
    },
    /// A program is missing.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The server still lists a client that it has terminated.
    #[error(
        "the server has ended its work, but still has it among its clients: its process has not noticed yet"
    )]
    StillClient,
    /// A process did not exit after a signal.
    #[error("its work is ended, but its process was sent {signal} and still runs {} s later", after.as_secs())]
    StillThere {
        /// The signal's name.
        signal: &'static str,
        /// The time waited for its exit.
        after: std::time::Duration,
    },
    /// A file could not be read or written.
    #[error("{0}")]
    File(#[from] std::io::Error),
    /// NVML accepted the MIG mode, but it is not active.
    #[error("{}", not_active(*activation, *mode, due))]
    NotActive {
        /// NVML's `activationStatus`.
        activation: Code,
        /// The mode as it reads now.
        mode: MigMode,
        /// The action that activates it.
        due: Due,
    },
    /// A start failed, and so did stopping what it had started.
    #[error("{cause}\nand what had been started could not be ended: {left}")]
    Left {
        /// The reason for the failed start.
        cause: Box<Cause>,
        /// The reason for the failed stop.
        left: Box<Cause>,
    },
    /// MIG mode stays on: switching it off on this GPU needs a reset.
    #[error("it is left on: to switch it off again, this GPU needs a reset")]
    Stays,
    /// MIG mode stays on: the GPU has instances.
    #[error("it is left on: there are instances")]
    StillPartitioned,
    /// A change of the MIG mode stays pending.
    #[error("the change is pending: it becomes active with a reset of the GPU, or a reboot")]
    Noted,
    /// The device does not exist.
    #[error("the device is not there")]
    NoDevice,
    /// The GPU instance does not exist.
    #[error("its GPU instance is not there")]
    NoInstance,
    /// A user or group of the profile does not exist.
    #[error("there is no {what} \"{name}\" on this machine")]
    NoAccount { what: &'static str, name: String },
    /// The daemon that has the name was not stopped.
    #[error("another daemon is still called \"{0}\": it was not stopped")]
    NameInUse(String),
    /// Another reason, which nothing depends on.
    #[error("{0}")]
    Other(String),
    /// The user interrupted the wait.
    #[error("interrupted")]
    Interrupted,
}

/// The action that activates a pending MIG mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// A reset, which the user has not allowed.
    Reset,
    /// A reboot: the reset did not help, or failed like this.
    Reboot(String),
}

fn not_active(activation: Code, mode: MigMode, due: &Due) -> String {
    let pending = if mode.pending == mode.current {
        "the driver has not taken the change"
    } else {
        "the driver has recorded the change as pending"
    };
    let text = format!("MIG mode is not active: {pending}: {activation}");
    match due {
        Due::Reset => text,
        Due::Reboot(why) => format!("{text}; {why}"),
    }
}

/// `held by pid 4711 (alice, python, session-3.scope)`
fn held_by(holders: &[Holder], hidden: usize) -> String {
    let names: Vec<String> = holders.iter().map(Holder::to_string).collect();
    let unseen = format!("{hidden} processes could not be inspected");
    match (names.as_slice(), hidden) {
        ([], 0) => "no visible process holds it".to_owned(),
        ([], _) => format!("no visible process holds it, and {unseen}"),
        (names, 0) => format!("held by {}", names.join(", ")),
        (names, _) => format!("held by {}; {unseen}", names.join(", ")),
    }
}

impl Cause {
    pub(super) fn nobody(what: &'static str, name: &str) -> Self {
        let name = name.to_owned();
        Self::NoAccount { what, name }
    }

    /// Adds the result of cleaning up after this failure.
    #[must_use]
    pub(super) fn and(self, cleaned_up: Result<(), Self>) -> Self {
        match cleaned_up {
            Ok(()) => self,
            Err(left) => Self::Left {
                cause: Box::new(self),
                left: Box::new(left),
            },
        }
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
            Self::Left { cause, left } => cause.lacks_processes() || left.lacks_processes(),
            _ => false,
        }
    }

    /// True if the rollback left it on purpose: another try would leave it too.
    pub(super) fn is_meant(&self) -> bool {
        matches!(self, Self::Stays | Self::StillPartitioned | Self::Noted)
    }

    /// Returns a remedy, if one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            cause if cause.lacks_processes() => Some(MORE_PROCESSES.to_owned()),
            Self::Nvml(error) => error.hint(),
            Self::Mps(error) => error.hint(),
            Self::Units(error) => Some(error.hint()),
            Self::Reset { error, .. } => error.hint(),
            Self::Environment(error) => Some(error.hint()),
            Self::InUse { .. } => Some(
                "let them end, and run this again: it goes on from here".to_owned(),
            ),
            Self::Busy { holders, .. } => Some(Holder::release(holders).to_owned()),
            Self::NotActive { due: Due::Reset, .. } => Some(
                "run it again with --reset, which resets this one GPU, or reboot this machine and run it \
                 again; in a virtual machine only the reboot helps"
                    .to_owned(),
            ),
            Self::NotActive { .. } => {
                Some("reboot this machine, and run this again: it goes on".to_owned())
            }
            Self::StillClient => Some(
                "it notices with its next CUDA call; the same command with --signal ends the process".to_owned(),
            ),
            Self::StillThere { signal: "SIGTERM", .. } => Some(
                "it may be saving its work; the same command with --signal=KILL does not let it".to_owned(),
            ),
            Self::StillThere { .. } => Some(
                "it ends when its call of the kernel does; the kernel log may say which one hangs".to_owned(),
            ),
            Self::Left { cause, .. } => cause.hint(),
            Self::File(error) => file_hint(error),
            Self::NoDevice | Self::NoInstance | Self::NameInUse(_) => {
                Some("run the same command again: it plans anew".to_owned())
            }
            Self::NoAccount { what, .. } => Some(format!(
                "make the {what}, or name another one in the profile"
            )),
            Self::Stays
            | Self::StillPartitioned
            | Self::Noted
            | Self::Other(_)
            | Self::Interrupted => None,
        }
    }
}
