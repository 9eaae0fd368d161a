use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::FileType;

use super::invocation::{Invocation, Task};
use super::log::diagnose;
use super::{ControlProgram, Kind, LogDir, LogFile, LogLine, MpsError};
use crate::host::MpsPrograms;
use crate::host::{self, Account, Directory, Limits, Output, Pid, RunError, Uid};

/// The longest path of a pipe directory, in bytes. Measured on drivers 550 to 595: 87 work, and
/// with 88 the daemon exits 1 without a word, because `control_privileged` no longer fits into a
/// socket address.
pub const MAX_PIPE_DIR: usize = 87;

/// The socket that programs and control sessions find a daemon by.
pub(super) const SOCKET: &str = "control";
/// The file that a daemon locks up to driver 595.
pub(super) const LOCK_FILE: &str = "control_lock";
/// The file with a daemon's pid, which it locks from driver 615 on.
pub(super) const PID_FILE: &str = "nvidia-cuda-mps-control.pid";

/// The files a control daemon makes in its pipe directory. After a clean end the first three stay.
const PIPE_FILES: [&str; 5] = [SOCKET, "control_privileged", LOCK_FILE, "log", PID_FILE];

/// The directory in a run directory that keeps pipe directories with files of their users' own.
pub const LEFT: &str = "left";

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

    /// The user the daemon runs as, who owns its directories.
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
        let logs = LogDir::open(&log).ok();
        let marks = LogFile::ALL.map(|file| logs.as_ref().map_or(0, |logs| logs.length(file)));
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

    /// The directory around the pipe directory, which nobody but us can change.
    pub(super) fn device_directory(&self) -> io::Result<Directory> {
        Directory::open(self.pipe.parent().unwrap_or(&self.pipe))
    }

    /// The pipe directory, which may be a user's; `None` if there is none.
    pub(super) fn pipe_directory(&self) -> io::Result<Option<Directory>> {
        match self.device_directory() {
            Ok(device) => device.child(self.pipe_name()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn pipe_name(&self) -> &std::ffi::OsStr {
        self.pipe.file_name().unwrap_or_default()
    }

    /// True if the socket is there that programs and control sessions find the daemon by. What cannot be seen is
    /// taken to be there.
    pub fn has_socket(&self) -> bool {
        match self.pipe_directory() {
            Ok(Some(pipe)) => pipe.has(SOCKET),
            Ok(None) => false,
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        }
    }

    /// Why no program can reach the daemon, where somebody has mounted a file system on its pipe directory.
    pub fn is_covered(&self) -> bool {
        let pipe = self.pipe_directory();
        pipe.is_err_and(|error| error.kind() == io::ErrorKind::CrossesDevices)
    }

    /// The control program for a session, run as the owner of the pipe directory: root does not connect to what
    /// lies in a user's directory.
    pub(super) fn control(&self) -> Command {
        self.invoke(Task::Session, &self.limits_of_owner())
    }

    /// Runs the control program to its end. Errors name it also where the helper becomes it.
    pub(super) fn run(
        &self,
        mut command: Command,
        input: &str,
        limit: Duration,
    ) -> Result<Output, RunError> {
        host::run(&mut command, input, limit).map_err(|error| error.about(&self.programs.control))
    }

    /// A call of the control program.
    pub(super) fn invoke(&self, task: Task, limits: &Limits) -> Command {
        let invocation = Invocation {
            pipe: self.pipe.clone(),
            task,
        };
        invocation.command_within(limits, &self.programs)
    }

    /// What it takes to be the owner of the pipe directory. Only we can have put it there.
    pub(super) fn limits_of_owner(&self) -> Limits {
        let owner = self
            .owner()
            .filter(|(uid, _)| host::caller() == Uid::ROOT && *uid != Uid::ROOT.0);
        Limits {
            user: owner,
            ..Limits::default()
        }
    }

    /// The owner and group of the pipe directory.
    fn owner(&self) -> Option<(u32, u32)> {
        let meta = self.pipe_directory().ok()??.stat_self().ok()?;
        Some((meta.st_uid, meta.st_gid))
    }

    /// Makes the log directory, and the pipe directory with nobody let in but its owner: who may enter follows once
    /// the daemon holds its lock.
    pub(super) fn make_directories(&self, who: &WhoMay) -> Result<(), MpsError> {
        let make = || {
            let (logs, name) = self.log_parent()?;
            logs.detach_mounts(name)?;
            put_logs_aside(&logs, name, who.owner())?;
            let directory = logs.make_child_of(name, who.mode(), who.owner(), who.group())?;
            put_non_files_aside(&directory)?;
            let device = self.device_directory()?;
            device.detach_mounts(self.pipe_name())?;
            device.make_child_of(self.pipe_name(), 0o700, who.owner(), who.group())?;
            Ok(())
        };
        make().map_err(MpsError::Directory)
    }

    /// Lets those in who may be clients. The lock file is closed to them first: a user who can open it can take its
    /// lock as soon as the daemon has gone.
    pub(super) fn open_directory(&self, who: &WhoMay) -> Result<(), MpsError> {
        let open = || {
            let device = self.device_directory()?;
            if !matches!(who, WhoMay::User(_))
                && let Some(pipe) = device.child(self.pipe_name())?
                && let Some(lock) = pipe.open_file(LOCK_FILE)?
            {
                lock.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
            }
            device.make_child_of(self.pipe_name(), who.mode(), who.owner(), who.group())?;
            Ok(())
        };
        open().map_err(MpsError::Directory)
    }

    /// The directory around the log directory, and its name in there.
    fn log_parent(&self) -> io::Result<(Directory, &str)> {
        let parent = Directory::open(self.log.parent().unwrap_or(&self.log))?;
        let name = self.log.file_name().and_then(|name| name.to_str());
        Ok((parent, name.unwrap_or_default()))
    }

    /// A log in whose place lies something else than a file, and what that is.
    pub(super) fn log_that_is_no_file(&self) -> Option<(PathBuf, &'static str)> {
        let (parent, name) = self.log_parent().ok()?;
        let logs = parent.child(name).ok()??;
        LogFile::ALL
            .map(LogFile::name)
            .into_iter()
            .find_map(|name| {
                let kind = match FileType::from_raw_mode(logs.stat(name).ok()??.st_mode) {
                    FileType::RegularFile => return None,
                    FileType::Fifo => "a FIFO",
                    FileType::Symlink => "a symbolic link",
                    _ => "no regular file",
                };
                Some((self.log.join(name), kind))
            })
    }

    /// Removes what daemons leave in the pipe directory, and the directory. One in which its user keeps other files
    /// is put aside: it must not block us, and the files are not ours to remove.
    pub fn remove_pipe_dir(&self) -> Result<(), MpsError> {
        let remove = || {
            let device = match self.device_directory() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                other => other?,
            };
            device.detach_mounts(self.pipe_name())?;
            let removed = self
                .remove_leftovers()
                .and_then(|()| device.remove_dir(self.pipe_name()));
            removed.or_else(|_| self.put_aside())
        };
        remove().map_err(MpsError::Directory)
    }

    /// Moves the pipe directory to a directory of ours where such are kept: a record that a user has made up is not
    /// looked for there.
    pub(super) fn put_aside(&self) -> io::Result<()> {
        let device = self.device_directory()?;
        let above = device.path().parent().unwrap_or(device.path());
        let left = Directory::open(above)?.make_child(LEFT, 0o755)?;
        let name = device.path().file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        let free = (1..=u16::MAX)
            .map(|number| format!("{name}.{number}"))
            .find(|free| !left.has(free));
        let free = free.unwrap_or_else(|| name.into_owned());
        device.rename(self.pipe_name(), &left, free)
    }

    /// Removes the files of a daemon that has ended. Anyone may hold the lock of an old lock file, so none may be
    /// left for the next daemon.
    pub(super) fn remove_leftovers(&self) -> io::Result<()> {
        let Some(pipe) = self.pipe_directory()? else {
            return Ok(());
        };
        PIPE_FILES
            .iter()
            .try_for_each(|file| pipe.remove_file(file))
    }

    /// The last `most` bytes of a log; nothing if it cannot be read.
    pub(super) fn log_end(&self, log: LogFile, most: u64) -> String {
        let logs = LogDir::open(&self.log);
        logs.map_or_else(|_| String::new(), |logs| logs.end_of(log, most))
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
        let logs = LogDir::open(&self.log).ok();
        let tail = |at: usize| {
            let logs = logs.as_ref();
            logs.map_or_else(Vec::new, |logs| {
                logs.tail(LogFile::ALL[at], self.marks[at], 200)
            })
        };
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

/// Moves logs that were written as another user out of the way: that user may have put links into the
/// directory, for the next daemon to write through.
fn put_logs_aside(logs: &Directory, name: &str, owner: Uid) -> io::Result<()> {
    let Some(meta) = logs.stat(name)? else {
        return Ok(());
    };
    if Uid(meta.st_uid) == owner || host::caller() != Uid::ROOT {
        return Ok(());
    }
    let aside = (1..=u16::MAX)
        .map(|number| format!("{name}.of-{}.{number}", meta.st_uid))
        .find(|aside| !logs.has(aside));
    match aside {
        Some(aside) => logs.rename(name, logs, aside),
        None => Ok(()),
    }
}

/// Gives whatever lies in a log's place and is no file another name: a daemon would wait for a reader of a FIFO. Its
/// user can have taken every such name.
fn put_non_files_aside(logs: &Directory) -> io::Result<()> {
    for name in LogFile::ALL.map(LogFile::name) {
        let Some(meta) = logs.stat(name)? else {
            continue;
        };
        if FileType::from_raw_mode(meta.st_mode) == FileType::RegularFile {
            continue;
        }
        let free = (1..=u16::MAX)
            .map(|number| format!("{name}.no-file.{number}"))
            .find(|free| !logs.has(free));
        let Some(free) = free else {
            return Err(io::Error::other(format!(
                "{path} is no regular file, and no name is left to put it aside under: remove it, or {path}.no-file.*",
                path = logs.path().join(name).display()
            )));
        };
        logs.rename(name, logs, free)?;
    }
    Ok(())
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
