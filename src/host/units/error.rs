use std::process::ExitStatus;

use thiserror::Error;

use super::Unit;
use crate::host::RunError;

/// Why systemd did not do what was asked.
#[derive(Debug, Error)]
pub enum UnitsError {
    /// systemd does not run this machine, as in most containers.
    #[error("systemd does not run here: {0}")]
    NoSystemd(String),
    /// `systemctl` refused.
    #[error("systemctl {asked} ({status}) said: {said}")]
    Refused {
        /// Its arguments.
        asked: String,
        /// How it ended.
        status: ExitStatus,
        /// All it said.
        said: String,
    },
    /// It said it was done, and the unit is not so.
    #[error(
        "systemctl {asked} ended without an error, and {unit} is {state}{}",
        quoted(said)
    )]
    NotDone {
        /// Its arguments.
        asked: String,
        /// The unit.
        unit: Unit,
        /// Its `ActiveState`.
        state: String,
        /// All it said.
        said: String,
    },
    /// It answered what is not expected.
    #[error("systemctl {asked} answered {answer:?}")]
    Strange {
        /// Its arguments.
        asked: String,
        /// The answer, word for word.
        answer: String,
    },
    /// It could not be run to its end.
    #[error("systemctl {asked}: {error}")]
    Program {
        /// Its arguments.
        asked: String,
        /// Why.
        error: RunError,
    },
}

impl UnitsError {
    /// What to do about it, where there is something to say.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoSystemd(_) => Some(
                "stop what holds the GPU by the means that started it; from within a container, on the host",
            ),
            Self::Refused { said, .. }
                if said.contains("Access denied") || said.contains("authentication") =>
            {
                Some("run it as root")
            }
            _ => None,
        }
    }
}

fn quoted(said: &str) -> String {
    if said.is_empty() {
        String::new()
    } else {
        format!("; it said: {said}")
    }
}
