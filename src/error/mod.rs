//! The end of a command: its exit status and, if it failed, the error and what to do about it.

mod ending;

use std::fmt::{self, Display, Formatter};

use crate::host::without_error_numbers;
use crate::render::json::Message;

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
    /// `run --wait`: the device was not free in time.
    WaitOver = 124,
    /// `run` did not start the program.
    NotRun = 125,
    /// `run` found the program, and cannot execute it, as shells have it.
    NotExecutable = 126,
    NotFound = 127,
    /// Ended by Ctrl-C, SIGTERM or SIGHUP; what had been changed was undone.
    Interrupted = 130,
}

impl ExitStatus {
    /// Every status with its meaning, for the help and the manual.
    pub const MEANINGS: [(Self, &'static str); 11] = [
        (Self::Done, "done"),
        (Self::Failed, "failed"),
        (Self::Usage, "wrong usage or bad profile"),
        (
            Self::Drift,
            "not (yet) as the profile says: a reset or reboot is due, or a check finds something (plan and status with --exit-code, heal, doctor, slurm gres --check)",
        ),
        (
            Self::Refused,
            "refused because something runs, or another change is under way",
        ),
        (
            Self::Infeasible,
            "the profile asks for more than fits on a GPU",
        ),
        (Self::WaitOver, "run: the time of --wait is over"),
        (
            Self::NotRun,
            "run: the program was not started; else the exit status is its own",
        ),
        (Self::NotExecutable, "run: the program cannot be executed"),
        (Self::NotFound, "run: there is no such program"),
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
    /// True if the user chose this end, which is no error.
    pub is_chosen: bool,
    /// True if the JSON document that the command has printed has it.
    pub is_in_document: bool,
}

/// The result of a command and of its parts.
pub type Result<T, E = CommandError> = std::result::Result<T, E>;

impl CommandError {
    /// An error that only words describe.
    pub fn new(kind: ExitStatus, message: impl Display) -> Self {
        Self {
            kind,
            ..Self::failed(message)
        }
    }

    /// The same, of a command that failed.
    pub fn failed(message: impl Display) -> Self {
        anyhow::Error::msg(message.to_string()).into()
    }

    /// Adds advice.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Returns the message with its advice, for JSON.
    pub fn message(&self) -> Message {
        Message {
            what: self.to_string(),
            hints: self.hints.clone(),
        }
    }

    /// Notes that a JSON document has it.
    #[must_use]
    pub fn in_document(self) -> Self {
        Self {
            is_in_document: true,
            ..self
        }
    }

    /// A change whose every step succeeded, and whose outcome cannot be read back.
    #[must_use]
    pub fn after_change(self) -> Self {
        Self {
            kind: ExitStatus::Failed,
            is_chosen: false,
            is_in_document: false,
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
        f.write_str(&without_error_numbers(&format!("{:#}", self.error)))
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
