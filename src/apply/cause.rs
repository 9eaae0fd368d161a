use thiserror::Error;

use crate::geometry::{ComputeChoice, ComputeInstanceProfile};
use crate::host::EnvironmentError;
use crate::host::{Holder, MORE_PROCESSES, ResetError, RunError, Unit, UnitsError};
use crate::mps::MpsError;
use crate::nvml::{Code, MigMode, NvmlError};

/// Why a step failed.
#[derive(Debug, Error)]
pub enum Cause {
    /// NVML refused.
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    /// The driver says for too long that an instance is in use.
    #[error("{error}: {}", held_by(holders, 0))]
    InUse {
        /// What it said last.
        error: NvmlError,
        /// Who uses it, as far as can be seen.
        holders: Vec<Holder>,
    },
    /// MIG mode does not change while the GPU is in use.
    #[error("the GPU is in use: {}", held_by(holders, *hidden))]
    Busy {
        /// The mode that was wanted.
        on: bool,
        /// Who uses it, as far as can be seen.
        holders: Vec<Holder>,
        /// How many processes did not let themselves be looked into.
        hidden: usize,
    },
    /// The control daemon did not do what was asked.
    #[error(transparent)]
    Mps(#[from] MpsError),
    /// systemd did not do what was asked.
    #[error(transparent)]
    Units(#[from] UnitsError),
    /// A GPU that some process holds cannot be reset.
    #[error("{error}: {}", held_by(holders, 0))]
    Reset {
        /// What nvidia-smi said.
        error: ResetError,
        /// Who holds it, as far as can be seen.
        holders: Vec<Holder>,
    },
    /// A program is missing.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// A client whose work was ended is still on its server's list.
    #[error(
        "the server has ended its work, but still has it among its clients: its process has not noticed yet"
    )]
    StillClient,
    /// A process does not end by a signal.
    #[error("its work is ended, but its process was sent {signal} and still runs {} s later", after.as_secs())]
    StillThere {
        /// The signal's name.
        signal: &'static str,
        /// For how long its end was waited for.
        after: std::time::Duration,
    },
    /// A process cannot be sent a signal.
    #[error("its work is ended, but its process cannot be sent {signal}: {error}")]
    NotSent {
        /// The signal's name.
        signal: &'static str,
        /// Why.
        error: std::io::Error,
    },
    /// A file could not be read or written.
    #[error("{0}")]
    File(#[from] std::io::Error),
    /// MIG mode was accepted and is not active.
    #[error("{}", not_active(*activation, *mode, due))]
    NotActive {
        /// NVML's `activationStatus`.
        activation: Code,
        /// The mode as it reads now.
        mode: MigMode,
        /// What it needs.
        due: Due,
    },
    /// A daemon may run where its process cannot be seen.
    #[error("the daemon of {name} cannot be seen from here: it may run in another pid namespace")]
    Unseen {
        /// Its device's name.
        name: String,
    },
    /// A start failed, and what it had started could not be ended.
    #[error("{cause}\nand what had been started could not be ended: {left}")]
    Left {
        /// Why the start failed.
        cause: Box<Cause>,
        /// Why the end failed.
        left: Box<Cause>,
    },
    /// MIG mode is not switched off again: on this GPU that needs a reset.
    #[error("it is left on: to switch it off again, this GPU needs a reset")]
    Stays,
    /// MIG mode is not switched off under instances.
    #[error("it is left on: there are instances")]
    StillPartitioned,
    /// A change of the MIG mode stays noted.
    #[error(
        "the driver has noted the change: it becomes active with a reset of the GPU, or a reboot"
    )]
    Noted,
    /// Nobody on this machine is called so.
    #[error("there is no {what} \"{name}\" on this machine")]
    Nobody {
        /// Whether a user or a group.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The compute mode that was set is not the one that reads back.
    #[error("the compute mode was set to {shall} and reads back as {is} (NVML's numbers)")]
    ComputeMode {
        /// What was set.
        shall: u32,
        /// What it is.
        is: u32,
    },
    /// A device is not there.
    #[error("the device is not there")]
    NoDevice,
    /// A GPU instance is not there.
    #[error("its GPU instance is not there")]
    NoInstance,
    /// A GPU instance does not offer such a compute instance.
    #[error(
        "the GPU instance offers {}, and nothing for {choice:?}",
        list(offered)
    )]
    NotOffered {
        /// What was wanted.
        choice: ComputeChoice,
        /// What there is.
        offered: Vec<ComputeInstanceProfile>,
    },
    /// Undoing was given up.
    #[error("not tried: the GPU hangs")]
    NotTried,
    /// The user interrupted the wait for it.
    #[error("interrupted")]
    Interrupted,
}

/// What a MIG mode that is not active needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// A reset, which was not allowed.
    Reset,
    /// A reboot: a reset did not help, or this came of it.
    Reboot(String),
}

fn not_active(activation: Code, mode: MigMode, due: &Due) -> String {
    let pending = if mode.pending == mode.current {
        "the driver has not taken the change"
    } else {
        "the driver has noted the change and not made it"
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
    let unseen = format!("{hidden} processes cannot be looked into");
    match (names.as_slice(), hidden) {
        ([], 0) => "nobody can be seen to hold it".to_owned(),
        ([], _) => format!("nobody can be seen to hold it, and {unseen}"),
        (names, 0) => format!("held by {}", names.join(", ")),
        (names, _) => format!("held by {}; {unseen}", names.join(", ")),
    }
}

fn list(offered: &[ComputeInstanceProfile]) -> String {
    let offers: Vec<String> = offered
        .iter()
        .map(|offer| format!("{}c (profile {})", offer.slices, offer.id))
        .collect();
    offers.join(", ")
}

impl Cause {
    pub(super) fn nobody(what: &'static str, name: &str) -> Self {
        Self::Nobody {
            what,
            name: name.to_owned(),
        }
    }

    /// This failure, with what came of cleaning up after it.
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

    /// Whether the step may have made something all the same.
    pub(super) fn may_have_worked(&self) -> bool {
        match self {
            Self::Nvml(error) => error.may_have_worked(),
            _ => false,
        }
    }

    /// Whether the system starts no more threads or processes.
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

    /// Whether what undoing leaves is left on purpose: trying again would leave it too.
    pub(super) fn is_meant(&self) -> bool {
        matches!(self, Self::Stays | Self::StillPartitioned | Self::Noted)
    }

    /// What to do about it, where there is something to say.
    pub fn hint(&self) -> Option<String> {
        match self {
            cause if cause.lacks_processes() => Some(MORE_PROCESSES.to_owned()),
            Self::Nvml(error) => error.hint().map(str::to_owned),
            Self::Mps(error) => error.hint(),
            Self::Units(error) => error.hint().map(str::to_owned),
            Self::Reset { error, .. } => error.hint().map(str::to_owned),
            Self::Environment(error) => Some(error.hint().to_owned()),
            Self::InUse { .. } => Some(
                "let them end, and run this again: it goes on from here".to_owned(),
            ),
            Self::Busy { holders, .. } => Some(busy_hint(holders)),
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
            Self::Left { cause, .. } => cause.hint(),
            _ => None,
        }
    }
}

fn busy_hint(holders: &[Holder]) -> String {
    let is_known = |holder: &&Holder| {
        let unit = holder.unit.as_deref();
        unit.is_some_and(|unit| Unit::named(unit).is_some())
    };
    let known = holders.iter().filter(is_known).count();
    match holders.len() {
        0 => "stop what has the GPU open (containers, the display, nvidia-persistenced), and run this again",
        all if all == known => "run it again with --stop-holders, which stops them and starts them again",
        _ if known > 0 => "end what is not a monitoring service, and run it again with --stop-holders",
        _ => "end them, and run this again",
    }
    .to_owned()
}
