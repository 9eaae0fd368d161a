use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::log::diagnose;
use super::{ControlProgram, Kind, Liveness, LogFile, LogLine, MpsError};
use crate::environment::MpsPrograms;
use crate::host::{self, Account, Limits, Pid, Uid};

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

/// Where in a run directory pipe directories are kept that hold files of their users' own.
pub const LEFT: &str = "left";

/// The one whose lock says whether a daemon lives.
pub(super) const LOCK_FILE: &str = PIPE_FILES[2];

/// Who may reach a daemon, by its directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhoMay {
    /// Every user of the machine.
    Everybody,
    /// The user who runs `mig-mps`.
    Owner,
    /// The members of a group with that number.
    Group(u32),
    /// Another user, whose daemon it is.
    User(Account),
}

impl WhoMay {
    fn mode(&self) -> u32 {
        match self {
            Self::Everybody => 0o755,
            Self::Group(_) => 0o750,
            Self::Owner | Self::User(_) => 0o700,
        }
    }

    /// Whom the daemon runs as, and its directories belong to.
    pub(super) fn owner(&self) -> Uid {
        match self {
            Self::User(account) => account.uid,
            _ => host::caller(),
        }
    }

    fn group(&self) -> Option<u32> {
        match self {
            Self::Group(group) => Some(*group),
            Self::User(account) => Some(account.gid),
            Self::Everybody | Self::Owner => None,
        }
    }
}

/// The control daemon of one device: where its directories are, whether or not it runs.
#[derive(Clone, Debug)]
pub struct Daemon {
    pub(super) programs: MpsPrograms,
    /// What the driver's control program has and does.
    pub(super) program: ControlProgram,
    pub(super) pipe: PathBuf,
    pub(super) log: PathBuf,
    /// How long its logs were when this was made: what stands before is about something else.
    marks: [u64; 2],
}

impl Daemon {
    /// The daemon with these directories.
    pub fn new(
        programs: MpsPrograms,
        program: ControlProgram,
        pipe: PathBuf,
        log: PathBuf,
    ) -> Self {
        let marks = LogFile::ALL.map(|file| {
            let meta = std::fs::symlink_metadata(log.join(file.name()));
            meta.map_or(0, |meta| meta.len())
        });
        Self {
            programs,
            program,
            pipe,
            log,
            marks,
        }
    }

    /// Its `CUDA_MPS_PIPE_DIRECTORY`.
    pub fn pipe_dir(&self) -> &Path {
        &self.pipe
    }

    /// Whether the socket is there that programs and control sessions find it by.
    pub fn has_socket(&self) -> bool {
        self.pipe.join(PIPE_FILES[0]).symlink_metadata().is_ok()
    }

    /// The control program for a session, run as whoever the pipe directory belongs to: root does not
    /// connect to what lies in a user's directory.
    pub(super) fn control(&self) -> Command {
        self.control_within(&self.limits_of_owner())
    }

    /// What it takes to be the owner of the pipe directory. The directory above it is ours, so nobody else has
    /// put it there.
    pub(super) fn limits_of_owner(&self) -> Limits {
        let owner = std::fs::symlink_metadata(&self.pipe);
        let owner = owner.map(|meta| (meta.uid(), meta.gid())).ok();
        let may_change = host::caller() == Uid::ROOT;
        Limits {
            user: owner.filter(|(uid, _)| may_change && Uid(*uid) != Uid::ROOT),
            ..Limits::default()
        }
    }

    /// The control program with the clean environment every call of it gets: nothing of the
    /// caller's `CUDA_*` may reach a daemon, since its servers inherit it.
    pub(super) fn control_within(&self, limits: &Limits) -> Command {
        let mut command = if *limits == Limits::default() {
            Command::new(&self.programs.control)
        } else {
            let mut command = Command::new(&self.programs.launcher);
            command.args(limits.words()).arg(&self.programs.control);
            command
        };
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
    pub(super) fn make_directories(&self, who: &WhoMay) -> Result<(), MpsError> {
        let make = || {
            self.put_logs_aside(who.owner())?;
            for directory in [&self.pipe, &self.log] {
                host::make_dir_of(directory, who.mode(), who.owner(), who.group())?;
            }
            Ok(())
        };
        make().map_err(MpsError::Directory)
    }

    /// Moves logs that were written as another user out of the way: that user may have put links into the
    /// directory, for the next daemon to write through.
    fn put_logs_aside(&self, owner: Uid) -> std::io::Result<()> {
        let Ok(meta) = std::fs::symlink_metadata(&self.log) else {
            return Ok(());
        };
        if Uid(meta.uid()) == owner || host::caller() != Uid::ROOT {
            return Ok(());
        }
        let name = self.log.file_name().unwrap_or_default().to_string_lossy();
        let aside = (1..=u16::MAX)
            .map(|number| format!("{name}.of-{}.{number}", meta.uid()))
            .map(|name| self.log.with_file_name(name))
            .find(|aside| aside.symlink_metadata().is_err());
        let Some(aside) = aside else {
            return Ok(());
        };
        std::fs::rename(&self.log, &aside).map_err(|error| host::in_path(&self.log, &error))
    }

    /// Removes the pipe directory of a dead daemon that was another user's: the next one could not use it.
    pub(super) fn remove_what_another_left(&self, who: &WhoMay) -> Result<(), MpsError> {
        let owner = std::fs::symlink_metadata(&self.pipe).map(|meta| Uid(meta.uid()));
        match owner {
            Ok(owner) if owner != who.owner() && self.liveness() == Liveness::Dead => {
                self.remove_pipe_dir()
            }
            _ => Ok(()),
        }
    }

    /// Removes what daemons leave in the pipe directory, and the directory. One in which its user keeps files of
    /// his own is put aside: it must hold nobody up, and what is his is not ours to remove.
    ///
    /// # Errors
    /// [`MpsError::Directory`]
    pub fn remove_pipe_dir(&self) -> Result<(), MpsError> {
        let removed = self
            .remove_leftovers()
            .and_then(|()| std::fs::remove_dir(&self.pipe));
        match removed {
            Ok(()) => Ok(()),
            Err(_) if self.pipe.symlink_metadata().is_err() => Ok(()),
            Err(_) => self.put_aside().map_err(MpsError::Directory),
        }
    }

    /// Moves the pipe directory to where such are kept. That is a directory of ours in between: a record that a user
    /// has made up is found nowhere.
    pub(super) fn put_aside(&self) -> std::io::Result<()> {
        let device = self.pipe.parent().unwrap_or(&self.pipe);
        let name = device.file_name().unwrap_or_default().to_string_lossy();
        let left = device.with_file_name(LEFT);
        host::make_dir(&left, 0o755)?;
        let free = (1..=u16::MAX)
            .map(|number| left.join(format!("{name}.{number}")))
            .find(|place| place.symlink_metadata().is_err());
        let place = free.unwrap_or_else(|| left.join(&*name));
        std::fs::rename(&self.pipe, &place).map_err(|error| host::in_path(&self.pipe, &error))
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
        for (file, lines) in LogFile::ALL.into_iter().zip(&mut telling) {
            lines.retain(|line| is_telling(file, line));
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
fn is_telling(file: LogFile, line: &str) -> bool {
    let kind = LogLine::parse(file, line).meaning().kind;
    !matches!(kind, Kind::Chatter | Kind::Benign)
}

/// A server's process id in the control program's answer.
pub(super) fn parse_pid(line: &str) -> Option<Pid> {
    line.trim().parse().ok().map(Pid)
}
