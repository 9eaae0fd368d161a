//! The end of a command: its exit status and, if it failed, the error and what to do about it.

use std::fmt::{self, Display, Formatter};
use std::io;

use crate::apply::ApplyError;
use crate::host::EnvironmentError;
use crate::host::{LimitsError, LockError, TooFewFiles, TooLittleMemory};
use crate::mps::MpsError;
use crate::node::{NoSuchDevice, ObserveError};
use crate::nvml::NvmlError;
use crate::plan::Refusal;
use crate::profile::ProfileError;
use crate::render::NoConsent;

/// The program's exit status. The numbers are a promise to scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    Done = 0,
    Failed = 1,
    Usage = 2,
    /// The node differs from the profile, or a reset or reboot is due.
    Drift = 3,
    /// Something runs that would be disrupted, or another change is under way.
    Refused = 4,
    Infeasible = 5,
    /// Ended by Ctrl-C, SIGTERM or SIGHUP; what had been changed was undone.
    Interrupted = 130,
}

impl ExitStatus {
    /// Every status with its meaning, for the help and the manual.
    pub const MEANINGS: [(Self, &'static str); 7] = [
        (Self::Done, "done"),
        (Self::Failed, "failed"),
        (Self::Usage, "wrong usage or bad profile"),
        (
            Self::Drift,
            "not (yet) as the profile says: a reset or reboot is due, or --exit-code of plan or status finds something",
        ),
        (
            Self::Refused,
            "refused because something runs, or another change is under way",
        ),
        (
            Self::Infeasible,
            "the profile asks for more than fits on a GPU",
        ),
        (Self::Interrupted, "interrupted (Ctrl-C, SIGTERM, SIGHUP)"),
    ];
}

/// A command that failed.
#[derive(Debug)]
pub struct CommandError {
    /// The exit status it ends the program with.
    pub kind: ExitStatus,
    pub error: anyhow::Error,
    /// Advice, shown after the error.
    pub hints: Vec<String>,
}

/// The result of a command and of its parts.
pub type Result<T, E = CommandError> = std::result::Result<T, E>;

impl CommandError {
    /// An error that only words describe.
    pub fn new(kind: ExitStatus, message: impl Display) -> Self {
        Self {
            kind,
            error: anyhow::Error::msg(message.to_string()),
            hints: Vec::new(),
        }
    }

    /// The same, of a command that failed.
    pub fn failed(message: impl Display) -> Self {
        Self::new(ExitStatus::Failed, message)
    }

    fn of(kind: ExitStatus, error: impl Into<anyhow::Error>) -> Self {
        Self {
            kind,
            error: error.into(),
            hints: Vec::new(),
        }
    }

    /// Adds advice.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    fn with_hints(mut self, hints: impl IntoIterator<Item = String>) -> Self {
        self.hints.extend(hints);
        self
    }

    /// A change whose every step succeeded, and whose outcome cannot be read back.
    #[must_use]
    pub fn after_change(self) -> Self {
        Self {
            kind: ExitStatus::Failed,
            error: self
                .error
                .context("the node was changed as planned, but cannot be read back"),
            hints: vec![
                "nothing is undone: every step has reported success, and what cannot be read cannot be undone \
                 safely; run the same command again: it goes on from there"
                    .to_owned(),
            ],
        }
    }
}

/// Says what was being done when an error came, and keeps its kind and hints.
pub trait Context<T> {
    /// Puts `doing` before the error.
    fn context(self, doing: impl Display) -> Result<T>;
}

impl Display for CommandError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.error)
    }
}

impl<T, E: Into<CommandError>> Context<T> for Result<T, E> {
    fn context(self, doing: impl Display) -> Result<T> {
        self.map_err(|error| {
            let mut error = error.into();
            error.error = error.error.context(doing.to_string());
            error
        })
    }
}

/// Errors that have no exit status and no hint of their own.
macro_rules! failed {
    ($($error:ty),+) => {
        $(impl From<$error> for CommandError {
            fn from(error: $error) -> Self {
                Self::of(ExitStatus::Failed, error)
            }
        })+
    };
}
failed!(anyhow::Error, io::Error, LimitsError, TooFewFiles);

impl From<TooLittleMemory> for CommandError {
    fn from(error: TooLittleMemory) -> Self {
        let hint = error.hint();
        Self::of(ExitStatus::Failed, error).with_hint(hint)
    }
}

/// Errors of what the user wrote.
macro_rules! wrong_usage {
    ($($error:ty),+) => {
        $(impl From<$error> for CommandError {
            fn from(error: $error) -> Self {
                Self::of(ExitStatus::Usage, error)
            }
        })+
    };
}
wrong_usage!(ProfileError, NoSuchDevice);

impl From<ObserveError> for CommandError {
    fn from(error: ObserveError) -> Self {
        match error {
            ObserveError::Nvml(error) => error.into(),
            ObserveError::Proc(_) => Self::of(ExitStatus::Failed, error),
        }
    }
}

impl From<NvmlError> for CommandError {
    fn from(error: NvmlError) -> Self {
        let hint = error.hint().map(str::to_owned);
        Self::of(ExitStatus::Failed, error).with_hints(hint)
    }
}

impl From<EnvironmentError> for CommandError {
    fn from(error: EnvironmentError) -> Self {
        let hint = error.hint().to_owned();
        Self::of(ExitStatus::Failed, error).with_hint(hint)
    }
}

impl From<MpsError> for CommandError {
    fn from(error: MpsError) -> Self {
        let hint = error.hint();
        Self::of(ExitStatus::Failed, error).with_hints(hint)
    }
}

impl From<LockError> for CommandError {
    fn from(error: LockError) -> Self {
        let kind = match error {
            LockError::Busy { .. } => ExitStatus::Refused,
            LockError::Unusable { .. } => ExitStatus::Failed,
        };
        Self::of(kind, error)
    }
}

impl From<Refusal> for CommandError {
    fn from(error: Refusal) -> Self {
        let kind = match &error {
            Refusal::Profile(_) | Refusal::Device(_) | Refusal::NotMeant(_) => ExitStatus::Usage,
            Refusal::Infeasible(_) => ExitStatus::Infeasible,
            Refusal::InTheWay(_) | Refusal::InUse { .. } => ExitStatus::Refused,
        };
        let hint = error.hint();
        Self::of(kind, error).with_hints(hint)
    }
}

impl From<NoConsent> for CommandError {
    fn from(error: NoConsent) -> Self {
        let hint = match &error {
            NoConsent::NobodyToAsk(_) => Some("agree beforehand with --yes"),
            NoConsent::Outgrown(_) => {
                Some("see the plan above, and run it again: it is planned anew")
            }
            NoConsent::Declined | NoConsent::Failed(_) => None,
        };
        Self::of(ExitStatus::Refused, error).with_hints(hint.map(str::to_owned))
    }
}

impl From<ApplyError> for CommandError {
    fn from(error: ApplyError) -> Self {
        let kind = if error.is_interrupted() {
            ExitStatus::Interrupted
        } else if error.is_pending() {
            ExitStatus::Drift
        } else if error.is_busy() {
            ExitStatus::Refused
        } else {
            ExitStatus::Failed
        };
        let hints = error.hints();
        Self::of(kind, error).with_hints(hints)
    }
}
