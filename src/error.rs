//! A command that failed: the error, its exit status, and what to do about it.

use std::fmt::{self, Display, Formatter};
use std::io;

use crate::failure::{CAUSE, ExitStatus, Failure};
use crate::host::FileError;
use crate::render::json::Message;

/// A command that failed.
#[derive(Debug)]
pub struct CommandError {
    /// The exit status it ends the program with.
    pub status: ExitStatus,
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

/// An error that only words describe.
pub fn command_error(message: impl Display) -> CommandError {
    anyhow::Error::msg(message.to_string()).into()
}

/// The end of a command that the user chose, such as by answering no. It is reported, but not as an error.
pub fn declined_by_user(status: ExitStatus, message: impl Display) -> CommandError {
    CommandError {
        is_chosen: true,
        ..CommandError::new(status, message)
    }
}

/// A mistake on the command line.
pub fn usage_error(message: impl Display) -> CommandError {
    CommandError::new(ExitStatus::Usage, message)
}

impl CommandError {
    /// The same as [`command_error`], with another exit status.
    pub fn new(status: ExitStatus, message: impl Display) -> Self {
        Self {
            status,
            ..command_error(message)
        }
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
    pub fn already_in_json(self) -> Self {
        Self {
            is_in_document: true,
            ..self
        }
    }

    /// A change whose every step succeeded, and whose outcome cannot be read back.
    #[must_use]
    pub fn into_read_back_error(self) -> Self {
        Self {
            status: ExitStatus::Failed,
            is_chosen: false,
            is_in_document: false,
            error: self
                .error
                .context("all steps succeeded, but the result could not be verified"),
            hints: vec![
                "run the same command again to verify the result; nothing was undone".to_owned(),
            ],
        }
    }
}

/// Says what was being done when an error came, and keeps its status and hints.
pub trait ErrorContext<T> {
    /// Puts `doing` before the error.
    fn context(self, doing: impl Display) -> Result<T>;
}

impl Display for CommandError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (position, cause) in self.error.chain().enumerate() {
            match position {
                0 => {}
                1 => f.write_str(": ")?,
                _ => f.write_str(CAUSE)?,
            }
            write!(f, "{cause}")?;
        }
        Ok(())
    }
}

impl<E: Failure> From<E> for CommandError {
    fn from(error: E) -> Self {
        Self {
            status: error.status(),
            hints: error.hints(),
            is_chosen: false,
            is_in_document: false,
            error: error.into(),
        }
    }
}

impl From<io::Error> for CommandError {
    fn from(error: io::Error) -> Self {
        FileError::from(error).into()
    }
}

impl From<anyhow::Error> for CommandError {
    fn from(error: anyhow::Error) -> Self {
        // What standard output refuses has a hint.
        let refused = error.downcast_ref::<FileError>();
        let hint = refused.and_then(Failure::hint);
        Self {
            status: ExitStatus::Failed,
            hints: hint.into_iter().collect(),
            is_chosen: false,
            is_in_document: false,
            error,
        }
    }
}

impl<T, E: Into<CommandError>> ErrorContext<T> for Result<T, E> {
    fn context(self, doing: impl Display) -> Result<T> {
        self.map_err(|error| {
            let mut error = error.into();
            error.error = error.error.context(doing.to_string());
            error
        })
    }
}
