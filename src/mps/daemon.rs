use std::path::{Path, PathBuf};
use std::process::Command;

use super::log::diagnose;
use super::{Kind, LogFile, LogLine, MpsError};
use crate::environment::MpsPrograms;
use crate::host::{self, Pid};

/// How long a pipe directory's path may be, in bytes. Measured on drivers 550 to 595: 87 work, and
/// with 88 the daemon exits 1 without a word, because `control_privileged` no longer fits into a
/// socket address.
pub const MAX_PIPE_DIR: usize = 87;

/// The files a control daemon makes in its pipe directory. After a clean end the first three stay.
pub(super) const PIPE_FILES: [&str; 5] = [
    "control",
    "control_privileged",
    "control_lock",
    "log",
    "nvidia-cuda-mps-control.pid",
];

/// The one whose lock says whether a daemon lives.
pub(super) const LOCK_FILE: &str = PIPE_FILES[2];

/// Who may reach a daemon, by the permissions of its directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhoMay {
    /// Every user of the machine.
    Everybody,
    /// The user who runs it.
    Owner,
}

impl WhoMay {
    fn mode(self) -> u32 {
        match self {
            Self::Everybody => 0o755,
            Self::Owner => 0o700,
        }
    }
}

/// The control daemon of one device: where its directories are, whether or not it runs.
#[derive(Clone, Debug)]
pub struct Daemon {
    pub(super) programs: MpsPrograms,
    pub(super) pipe: PathBuf,
    pub(super) log: PathBuf,
    /// How long its logs were when this was made: what stands before is about something else.
    marks: [u64; 2],
}

impl Daemon {
    /// The daemon with these directories.
    pub fn new(programs: MpsPrograms, pipe: PathBuf, log: PathBuf) -> Self {
        let marks = LogFile::ALL.map(|file| {
            let meta = std::fs::metadata(log.join(file.name()));
            meta.map_or(0, |meta| meta.len())
        });
        Self {
            programs,
            pipe,
            log,
            marks,
        }
    }

    /// Its `CUDA_MPS_PIPE_DIRECTORY`.
    pub fn pipe_dir(&self) -> &Path {
        &self.pipe
    }

    /// The control program with the clean environment every call of it gets: nothing of the
    /// caller's `CUDA_*` may reach a daemon, since its servers inherit it.
    pub(super) fn control(&self) -> Command {
        let mut command = Command::new(&self.programs.control);
        command
            .env_clear()
            .env("PATH", &self.programs.path)
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe)
            .env("CUDA_MPS_LOG_DIRECTORY", &self.log)
            .env("CUDA_MPS_PROTOCOL_VERSION", "2")
            .current_dir("/");
        for kept in ["LD_LIBRARY_PATH", "HOME"] {
            if let Some(value) = std::env::var_os(kept) {
                command.env(kept, value);
            }
        }
        command
    }

    /// Makes the pipe and log directories.
    pub(super) fn make_directories(&self, who: WhoMay) -> Result<(), MpsError> {
        for directory in [&self.pipe, &self.log] {
            host::make_dir(directory, who.mode()).map_err(MpsError::Directory)?;
        }
        Ok(())
    }

    /// Removes what daemons leave in the pipe directory, and the directory.
    ///
    /// # Errors
    /// [`MpsError::Directory`], also where somebody put other files there.
    pub fn remove_pipe_dir(&self) -> Result<(), MpsError> {
        let remove = || {
            self.remove_leftovers()?;
            match std::fs::remove_dir(&self.pipe) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(host::in_path(&self.pipe, &error))
                }
                _ => Ok(()),
            }
        };
        remove().map_err(MpsError::Directory)
    }

    /// Removes the files of a daemon that has ended. Anyone may hold the lock of an old lock file,
    /// so none may be left for the next daemon.
    pub(super) fn remove_leftovers(&self) -> std::io::Result<()> {
        PIPE_FILES
            .iter()
            .try_for_each(|file| host::remove_if_there(&self.pipe.join(file)))
    }

    /// The last telling lines its logs have got since this was made, the server's after the
    /// daemon's.
    pub fn last_words(&self) -> Vec<String> {
        let mut telling = self.lines();
        for lines in &mut telling {
            lines.retain(|line| is_telling(line));
            lines.drain(..lines.len().saturating_sub(4));
        }
        telling.concat()
    }

    /// The lines of each log since this was made.
    fn lines(&self) -> [Vec<String>; 2] {
        let tail =
            |at: usize| host::tail(&self.log.join(LogFile::ALL[at].name()), self.marks[at], 200);
        [tail(0), tail(1)]
    }

    /// An error about this daemon with its last log lines, and what they say in words.
    pub(super) fn failure(&self, what: impl Into<String>) -> MpsError {
        let mut what = what.into();
        let [control, server] = self.lines();
        if let Some(words) = diagnose(&control, &server) {
            what = format!("{what}: {words}");
        }
        MpsError::Failed {
            what,
            log: self.log.clone(),
            last_words: self.last_words(),
        }
    }
}

/// Whether a log line tells more than that somebody asked something. Wording differs between versions: what is not
/// known is shown.
fn is_telling(line: &str) -> bool {
    let kind = LogLine::parse(line).meaning().kind;
    !matches!(kind, Kind::Chatter | Kind::Benign)
}

/// A server's process id in the control program's answer.
pub(super) fn parse_pid(line: &str) -> Option<Pid> {
    line.trim().parse().ok().map(Pid)
}
