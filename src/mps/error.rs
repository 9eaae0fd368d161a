use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use super::MAX_PIPE_DIR;
use crate::host::RunError;

/// Why a daemon did not do what was asked.
#[derive(Debug, Error)]
pub enum MpsError {
    /// The pipe directory's path does not fit into a socket address.
    #[error(
        "the pipe directory {} is {} bytes long: a socket path allows {MAX_PIPE_DIR}",
        .0.display(), .0.as_os_str().len()
    )]
    PathTooLong(PathBuf),
    /// A directory could not be made or removed.
    #[error("{0}")]
    Directory(io::Error),
    /// Somebody who shall use the daemon could not reach its directory.
    #[error("{who} may not enter {}, which leads to {}", closed.display(), path.display())]
    KeptOut {
        /// Who.
        who: String,
        /// The directory that keeps them out.
        closed: PathBuf,
        /// Where they want to.
        path: PathBuf,
    },
    /// No daemon answers in the directory.
    #[error("no control daemon runs in {}", .0.display())]
    NoDaemon(PathBuf),
    /// Another session is open: the control program admits one at a time.
    #[error(
        "the control daemon in {} is busy: {}",
        pipe.display(), busy(waited.as_secs(), later.as_deref())
    )]
    Busy {
        /// Whose.
        pipe: PathBuf,
        /// For how long it was tried.
        waited: Duration,
        /// Where it queues sessions instead of refusing them, the changes among the commands that it may still carry
        /// out.
        later: Option<String>,
    },
    /// The control program answered what is not expected.
    #[error("the control program was asked {asked:?} and answered {answer:?}")]
    Strange {
        /// The commands.
        asked: String,
        /// The answer, word for word.
        answer: String,
    },
    /// The control program could not be run to its end.
    #[error(transparent)]
    Program(#[from] RunError),
    /// Something did not work, and the logs may say why.
    #[error("{what}{}", quote(last_words))]
    Failed {
        /// What did not work.
        what: String,
        /// Where the logs are.
        log: PathBuf,
        /// Their last lines.
        last_words: Vec<String>,
    },
}

impl MpsError {
    /// What to do about it, where there is something to say.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::PathTooLong(_) => Some("set MIG_MPS_RUN_DIR to a shorter directory".to_owned()),
            Self::KeptOut { closed, .. } => Some(format!(
                "let them through with chmod o+x {}, or set MIG_MPS_RUN_DIR and MIG_MPS_LOG_DIR to other directories",
                closed.display()
            )),
            Self::Busy { .. } => Some(
                "it is that of a mig-mps that lets clients end, which comes to its end by itself, or of a forgotten \
                 nvidia-cuda-mps-control, which can be closed"
                    .to_owned(),
            ),
            Self::Failed { log, .. } => Some(format!("the whole logs are in {}", log.display())),
            _ => None,
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
