//! A control daemon and its directories: made, opened to its users, removed.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Stat, accessat};
use rustix::io::Errno;
use thiserror::Error;

use super::log::diagnose;
use super::{ControlProgram, LineKind, LogDir, LogFile, LogLine};
use crate::failure::Failure;
use crate::host::{
    self, Access, Directory, EntryKind, FileError, FileResult, MpsPrograms, Output, Permission,
    RunError, Uid,
};

/// The control daemon of one device, running or not, by its directories.
#[derive(Clone, Debug)]
pub struct Daemon {
    pub(super) programs: MpsPrograms,
    /// The features of the driver's control program.
    pub(super) program: ControlProgram,
    pub(super) pipe: PathBuf,
    pub(super) log: PathBuf,
    /// The number of its devices: more than one only for a joint device.
    pub(super) devices: usize,
    /// The lengths of its logs when this value was made. Earlier lines are about something else.
    pub(super) marks: [u64; 2],
}

impl Daemon {
    pub fn new(
        programs: MpsPrograms,
        program: ControlProgram,
        pipe: PathBuf,
        log: PathBuf,
    ) -> Self {
        let logs = LogDir::open(&log).ok();
        let marks = LogFile::ALL.map(|file| logs.as_ref().map_or(0, |logs| logs.log_length(file)));
        Self {
            programs,
            program,
            pipe,
            log,
            devices: 1,
            marks,
        }
    }

    /// The same daemon of so many GPUs.
    #[must_use]
    pub fn with_devices(self, devices: usize) -> Self {
        Self { devices, ..self }
    }

    /// Opens the parent of the pipe directory, which only we can change.
    pub(super) fn device_directory(&self) -> FileResult<Directory> {
        Directory::open(self.pipe.parent().unwrap_or(&self.pipe))
    }

    /// Opens the pipe directory. Returns `None` if there is none, and refuses that of a user.
    pub(super) fn pipe_directory(&self) -> FileResult<Option<Directory>> {
        let pipe = match self.device_directory() {
            Ok(device) => device.open_child(self.pipe_name())?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        pipe.iter().try_for_each(Directory::check_owner)?;
        Ok(pipe)
    }

    pub(super) fn pipe_name(&self) -> &OsStr {
        self.pipe.file_name().unwrap_or_default()
    }

    /// True if the daemon's socket exists, or cannot be seen.
    pub fn has_socket(&self) -> bool {
        match self.pipe_directory() {
            Ok(Some(pipe)) => pipe.has_entry(SOCKET),
            Ok(None) => false,
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        }
    }

    /// True if the caller may not enter the pipe directory, as in a device that serves another user alone.
    pub fn is_closed_to_caller(&self) -> bool {
        let entered = accessat(
            CWD,
            &self.pipe,
            rustix::fs::Access::EXEC_OK,
            AtFlags::EACCESS,
        );
        entered == Err(Errno::ACCESS)
    }

    /// True if a file system is mounted on the pipe directory, which hides the daemon from clients.
    pub fn is_hidden_by_mount(&self) -> bool {
        let pipe = self.pipe_directory();
        pipe.is_err_and(|error| error.kind() == io::ErrorKind::CrossesDevices)
    }

    /// Runs a control session to its end.
    pub(super) fn run_session(&self, input: &str, limit: Duration) -> Result<Output, RunError> {
        let session = self.clean_command(&self.programs.control);
        self.run(&session, input, limit)
    }

    /// Runs the control program to its end. Errors name it even if it is started through the helper.
    pub(super) fn run(
        &self,
        command: &Command,
        input: &str,
        limit: Duration,
    ) -> Result<Output, RunError> {
        let program = self.programs.control.display().to_string();
        let begun = Instant::now();
        let ran = host::run_with_name(program, command, input, limit);
        self.trace_session(input, begun, &ran);
        ran
    }

    /// Traces a control session that has ended, or the start of the daemon.
    fn trace_session(&self, input: &str, begun: Instant, ran: &Result<Output, RunError>) {
        if !tracing::enabled!(target: "mps", tracing::Level::DEBUG) {
            return;
        }
        let pipe = self.pipe.display();
        let commands: Vec<&str> = input.lines().collect();
        let mut all = vec![match commands.as_slice() {
            [] => "start".to_owned(),
            commands => commands.join("; "),
        }];
        match ran {
            Ok(Output { stdout, stderr, .. }) => {
                all.extend(stdout.lines().chain(stderr.lines()).map(str::to_owned));
            }
            Err(error) => all.push(error.to_string()),
        }
        let took = begun.elapsed().as_secs_f64() * 1000.0;
        tracing::debug!(target: "mps", "{pipe}: {} ({took:.1} ms)", all.join(": "));
    }

    /// Returns the last `most` bytes of a log, or nothing if it cannot be read.
    pub(super) fn log_end(&self, log: LogFile, most: u64) -> String {
        let logs = LogDir::open(&self.log);
        logs.map_or_else(|_| String::new(), |logs| logs.end_of(log, most))
    }

    /// Returns an error about this daemon with its last log lines since this value was made, the server's after the
    /// daemon's, and their diagnosis.
    pub(super) fn error_with_logs(&self, what: impl Into<String>) -> MpsError {
        let mut what = what.into();
        let [control_mark, server_mark] = self.marks;
        let (control, server) = match LogDir::open(&self.log) {
            Ok(logs) => (
                logs.last_lines_after(LogFile::Control, control_mark),
                logs.last_lines_after(LogFile::Server, server_mark),
            ),
            Err(_) => (Vec::new(), Vec::new()),
        };
        if let Some(diagnosis) = diagnose(&control, &server) {
            what = format!("{what}: {diagnosis}");
        }
        let mut last_lines = last_relevant_lines(LogFile::Control, control);
        last_lines.extend(last_relevant_lines(LogFile::Server, server));
        MpsError::Failed {
            what,
            log: self.log.clone(),
            last_lines,
            is_quitting: false,
        }
    }

    /// Makes the log directory and the pipe directory, which only the caller can enter until the daemon holds its lock.
    pub(super) fn make_directories(&self, access: &Access) -> Result<(), MpsError> {
        let logs = Directory::open(self.log.parent().unwrap_or(&self.log))?;
        let name = self.log.file_name().unwrap_or_default();
        // Another user may have put links into it for the next daemon to write through.
        if let Some(meta) = logs.stat(name)?
            && meta.st_uid != host::caller().0
            && host::caller() == Uid::ROOT
            && let Some(aside) = free_name(&logs, &format!("{}.of-{}", name.display(), meta.st_uid))
        {
            logs.rename(name, &logs, aside)?;
        }
        let log = logs.make_child_with(name, access, Permission::Read)?;
        for file in LogFile::ALL {
            log.free_place(file.name(), EntryKind::File)?;
        }
        self.device_directory()?
            .make_child(self.pipe_name(), &Access::Owner)?;
        Ok(())
    }

    /// Opens the pipe directory to clients, and gives the log directory its permissions again. Closes the lock file to the
    /// clients first: a user who can open it can take its lock as soon as the daemon has exited.
    pub fn open_directories(&self, access: &Access) -> Result<(), MpsError> {
        let device = self.device_directory()?;
        if let Some(pipe) = device.open_child(self.pipe_name())?
            && let Some(lock) = pipe.open_file(LOCK_FILE)?
        {
            let private = PermissionsExt::from_mode(0o600);
            lock.set_permissions(private).map_err(FileError::from)?;
        }
        device.make_child(self.pipe_name(), access)?;
        let logs = Directory::open(self.log.parent().unwrap_or(&self.log))?;
        let name = self.log.file_name().unwrap_or_default();
        // The next start replaces a directory of another user, and makes one that was removed.
        let is_ours = |meta: Stat| meta.st_uid == host::caller().0;
        if logs.stat(name)?.is_some_and(is_ours) {
            logs.make_child_with(name, access, Permission::Read)?;
        }
        Ok(())
    }

    /// Removes the files of daemons from the pipe directory, and the directory. Moves it away instead if there are others in
    /// it, or if it belongs to a user: those must not block us, and are not ours to remove.
    pub fn remove_pipe_dir(&self) -> Result<(), MpsError> {
        let device = match self.device_directory() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        device.detach_mounts(self.pipe_name())?;
        if self.is_foreign()? {
            return Ok(self.quarantine_pipe_dir()?);
        }
        let removed = self
            .remove_leftovers()
            .and_then(|()| device.remove_if_only_directories(self.pipe_name()));
        if !device.has_entry(self.pipe_name()) {
            return Ok(());
        }
        if !matches!(removed, Ok(true)) {
            self.quarantine_pipe_dir()?;
        }
        Ok(())
    }

    /// True if the pipe directory is another user's, as up to mig-mps 0.2 where a device served one user.
    pub(super) fn is_foreign(&self) -> FileResult<bool> {
        let pipe = self.device_directory()?.stat(self.pipe_name())?;
        Ok(pipe.is_some_and(|meta| meta.st_uid != host::caller().0))
    }

    /// Moves the pipe directory to [`QUARANTINE`], where no records are read: a user could have forged one.
    pub(super) fn quarantine_pipe_dir(&self) -> FileResult<()> {
        let device = self.device_directory()?;
        let above = device.path().parent().unwrap_or(device.path());
        let set_aside = Directory::open(above)?.make_child(QUARANTINE, &Access::Everybody)?;
        let name = device
            .path()
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let free = free_name(&set_aside, &name).unwrap_or_else(|| name.into_owned());
        device.rename(self.pipe_name(), &set_aside, free)
    }

    /// Removes the files of a daemon that has exited. Any user may hold the lock of an old lock file, so the next daemon
    /// must not find one.
    pub(super) fn remove_leftovers(&self) -> FileResult<()> {
        let Some(pipe) = self.pipe_directory()? else {
            return Ok(());
        };
        PIPE_FILES
            .iter()
            .try_for_each(|file| pipe.remove_file(file))
    }
}

/// Returns the last lines of a log that are more than a query or harmless. Unknown lines are relevant: wording differs
/// between drivers.
fn last_relevant_lines(file: LogFile, mut lines: Vec<String>) -> Vec<String> {
    lines.retain(|line| {
        let kind = LogLine::parse(file, line).meaning().kind;
        !matches!(kind, LineKind::Chatter | LineKind::Benign)
    });
    lines.split_off(lines.len().saturating_sub(4))
}

/// Returns a name that begins so and is not taken.
fn free_name(directory: &Directory, begin: &str) -> Option<String> {
    (1..=u16::MAX)
        .map(|number| format!("{begin}.{number}"))
        .find(|free| !directory.has_entry(free))
}

/// The longest path of a pipe directory, in bytes. Measured on drivers 550 to 595: 87 work; with 88 the daemon exits
/// with status 1 and no message, because `control_privileged` no longer fits into a socket address.
pub const MAX_PIPE_DIR: usize = 87;

/// The socket by which clients and control sessions find a daemon.
pub(super) const SOCKET: &str = "control";
/// The file that a daemon locks up to driver 595.
pub(super) const LOCK_FILE: &str = "control_lock";
/// The file with a daemon's pid. From driver 615 on the daemon locks this one.
pub(super) const PID_FILE: &str = "nvidia-cuda-mps-control.pid";

/// The files that a control daemon makes in its pipe directory. After a clean stop the first three remain.
pub(super) const PIPE_FILES: [&str; 5] = [SOCKET, "control_privileged", LOCK_FILE, "log", PID_FILE];

/// The subdirectory of a run directory for pipe directories that mig-mps does not remove.
pub const QUARANTINE: &str = "left";

/// A failed operation on a daemon.
#[derive(Debug, Error)]
pub enum MpsError {
    /// The path of the pipe directory does not fit into a socket address.
    #[error(
        "the pipe directory {} is {} bytes long, but a socket path allows only {MAX_PIPE_DIR}",
        .0.display(), .0.as_os_str().len()
    )]
    PathTooLong(PathBuf),
    /// A directory could not be changed.
    #[error(transparent)]
    Directory(#[from] FileError),
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
        /// True if the daemon admits no new clients now, and ends with the last one.
        is_quitting: bool,
    },
}

impl Failure for MpsError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::PathTooLong(_) => Some("set MIG_MPS_RUN_DIR to a shorter directory".to_owned()),
            Self::KeptOut { .. } => Some(
                "unset MIG_MPS_RUN_DIR and MIG_MPS_LOG_DIR, or set them to directories that these users may enter"
                    .to_owned(),
            ),
            Self::Busy { .. } => Some(
                "wait until no other mig-mps waits for clients, and close any open session of nvidia-cuda-mps-control"
                    .to_owned(),
            ),
            Self::Failed { log, .. } => Some(format!(
                "run `mig-mps doctor` to find known causes; the complete logs are in {}",
                log.display()
            )),
            Self::Directory(error) => error.hint(),
            Self::NoDaemon(_) => Some("run `mig-mps heal` to start daemons that have died".to_owned()),
            Self::Unexpected { .. } => {
                Some("run `mig-mps doctor` to check the control program and the daemons".to_owned())
            }
            Self::Program(error) => error.hint(),
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
