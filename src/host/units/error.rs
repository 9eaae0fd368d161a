use std::process::ExitStatus;

use thiserror::Error;

use super::Unit;
use crate::host::{RunError, as_root};

/// A failed operation of systemd.
#[derive(Debug, Error)]
pub enum UnitsError {
    /// The system has no systemd, like most containers.
    #[error("systemd does not run here: {0}")]
    NoSystemd(String),
    /// `systemctl` refused.
    #[error("systemctl {asked} ({status}) said: {said}")]
    Refused {
        asked: String,
        status: ExitStatus,
        said: String,
    },
    /// `systemctl` reported success, but the unit has another state.
    #[error(
        "systemctl {asked} ended without an error, and {unit} is {state}{}",
        quoted(said)
    )]
    NotDone {
        asked: String,
        unit: Unit,
        /// The `ActiveState`.
        state: String,
        said: String,
    },
    /// `systemctl` gave an unexpected answer.
    #[error("systemctl {asked} answered {answer:?}")]
    Strange { asked: String, answer: String },
    /// `systemctl` could not be run to its end.
    #[error("systemctl {asked}: {error}")]
    Program { asked: String, error: RunError },
}

impl UnitsError {
    /// Returns the remedy.
    pub fn hint(&self) -> String {
        match self {
            Self::NoSystemd(_) => {
                "stop the services that hold the GPU with the tool that started them; in a container, on the host"
                    .to_owned()
            }
            Self::Refused { said, .. }
                if said.contains("Access denied") || said.contains("authentication") =>
            {
                as_root()
            }
            Self::Refused { asked, .. } | Self::Strange { asked, .. } => {
                format!("find out why systemctl {asked} fails, and run this again")
            }
            Self::NotDone { unit, .. } => {
                format!("systemctl status {unit} shows what keeps it so; then run this again")
            }
            Self::Program { error, .. } => error.hint().to_owned(),
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
