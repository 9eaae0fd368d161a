use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use super::MAX_PIPE_DIR;
use crate::host::{RunError, file_hint};

/// A failed operation on a daemon.
#[derive(Debug, Error)]
pub enum MpsError {
    /// The path of the pipe directory does not fit into a socket address.
    #[error(
        "the pipe directory {} is {} bytes long: a socket path allows {MAX_PIPE_DIR}",
        .0.display(), .0.as_os_str().len()
    )]
    PathTooLong(PathBuf),
    /// A directory could not be changed.
    #[error(transparent)]
    Directory(#[from] io::Error),
    /// A user of the daemon cannot enter its directory.
    #[error("{who} may not enter {}, which leads to {}", closed.display(), path.display())]
    KeptOut {
        who: String,
        /// The directory that cannot be entered.
        closed: PathBuf,
        path: PathBuf,
    },
    /// No daemon answers in the pipe directory.
    #[error("no control daemon runs in {}", .0.display())]
    NoDaemon(PathBuf),
    /// Another session is open: the control program admits one at a time.
    #[error(
        "the control daemon in {} is busy: {}",
        pipe.display(), busy(waited.as_secs(), later.as_deref())
    )]
    Busy {
        pipe: PathBuf,
        waited: Duration,
        /// The changes that the daemon may still carry out, if it queues sessions instead of refusing them.
        later: Option<String>,
    },
    /// The control program gave an unexpected answer.
    #[error("the control program was asked {asked:?} and answered {answer:?}")]
    Unexpected { asked: String, answer: String },
    /// The control program could not be run to its end.
    #[error(transparent)]
    Program(#[from] RunError),
    /// An operation failed, and the logs may give the reason.
    #[error("{what}{}", quote(last_lines))]
    Failed {
        what: String,
        /// The log directory.
        log: PathBuf,
        last_lines: Vec<String>,
    },
}

impl MpsError {
    /// Returns the remedy, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::PathTooLong(_) => Some("set MIG_MPS_RUN_DIR to a shorter directory".to_owned()),
            Self::KeptOut { .. } => Some(
                "unset MIG_MPS_RUN_DIR and MIG_MPS_LOG_DIR, or set them to directories that they may enter"
                    .to_owned(),
            ),
            Self::Busy { .. } => Some(
                "either another mig-mps is waiting for clients to exit, or somebody left nvidia-cuda-mps-control open: \
                 wait, or close it"
                    .to_owned(),
            ),
            Self::Failed { log, .. } => Some(format!(
                "mig-mps doctor finds known causes; the whole logs are in {}",
                log.display()
            )),
            Self::Directory(error) => file_hint(error),
            Self::NoDaemon(_) => Some("mig-mps heal starts daemons that have died".to_owned()),
            Self::Unexpected { .. } => {
                Some("mig-mps doctor checks the control program and the daemons".to_owned())
            }
            Self::Program(error) => Some(error.hint().to_owned()),
        }
    }
}

fn busy(seconds: u64, later: Option<&str>) -> String {
    let open = "another control session";
    match later {
        None => format!("{open} has been open for {seconds} s"),
        Some("") => format!("{open} is open, or it hangs: no answer within {seconds} s"),
        Some(changes) => format!(
            "{open} is open, or it hangs: no answer within {seconds} s; it may still carry out: {changes}"
        ),
    }
}

fn quote(lines: &[String]) -> String {
    lines.iter().fold(String::new(), |mut text, line| {
        let _ = write!(text, "\n    {line}");
        text
    })
}
