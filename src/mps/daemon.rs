use std::io;
use std::iter;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, accessat};
use rustix::io::Errno;

use super::invocation::{Invocation, Task};
use super::log::diagnose;
use super::pipe_files::SOCKET;
use super::{ControlProgram, Kind, LogDir, LogFile, LogLine, MpsError};
use crate::host::{self, Account, Directory, Limits, MpsPrograms, Output, RunError, Uid};
use crate::settings::Serve;

/// The control daemon of one device, running or not, by its directories.
#[derive(Clone, Debug)]
pub struct Daemon {
    pub(super) programs: MpsPrograms,
    /// The features of the driver's control program.
    pub(super) program: ControlProgram,
    /// The user that the daemon runs as; `None` if that is the caller.
    user: Option<String>,
    pub(super) pipe: PathBuf,
    pub(super) log: PathBuf,
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
        let marks = LogFile::ALL.map(|file| logs.as_ref().map_or(0, |logs| logs.length(file)));
        Self {
            programs,
            program,
            user: None,
            pipe,
            log,
            marks,
        }
    }

    /// The same for a daemon that serves these users.
    pub fn serving(self, serve: Option<&Serve>) -> Self {
        let user = match serve {
            Some(Serve::User(name)) => Some(name.clone()),
            _ => None,
        };
        Self { user, ..self }
    }

    /// Opens the parent of the pipe directory, which only we can change.
    pub(super) fn device_directory(&self) -> io::Result<Directory> {
        Directory::open(self.pipe.parent().unwrap_or(&self.pipe))
    }

    /// Opens the pipe directory, which may belong to a user. Returns `None` if there is none.
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

    /// True if the daemon's socket exists, or cannot be seen.
    pub fn has_socket(&self) -> bool {
        match self.pipe_directory() {
            Ok(Some(pipe)) => pipe.has(SOCKET),
            Ok(None) => false,
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        }
    }

    /// True if the caller may not enter the pipe directory, as in a device that serves another user alone.
    pub fn is_closed_to_caller(&self) -> bool {
        let entered = accessat(CWD, &self.pipe, rustix::fs::Access::EXEC_OK, AtFlags::EACCESS);
        entered == Err(Errno::ACCESS)
    }

    /// True if a file system is mounted on the pipe directory, which hides the daemon from clients.
    pub fn is_covered(&self) -> bool {
        let pipe = self.pipe_directory();
        pipe.is_err_and(|error| error.kind() == io::ErrorKind::CrossesDevices)
    }

    /// Returns the command for a session, run as the daemon's user: root does not connect to sockets in a user's
    /// directory.
    pub(super) fn session_command(&self) -> Result<Command, MpsError> {
        Ok(self.command(Task::Session, &self.limits_of_user()?))
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
        let ran = host::run_as(program, command, input, limit);
        self.trace(input, begun, &ran);
        ran
    }

    /// Traces a control session that has ended, or the start of the daemon.
    fn trace(&self, input: &str, begun: Instant, ran: &Result<Output, RunError>) {
        if !tracing::enabled!(target: "mps", tracing::Level::DEBUG) {
            return;
        }
        let pipe = self.pipe.display();
        let commands: Vec<&str> = input.lines().collect();
        let commands = match commands.as_slice() {
            [] => "start".to_owned(),
            commands => commands.join("; "),
        };
        let took = begun.elapsed().as_secs_f64() * 1000.0;
        match ran {
            Ok(output) => {
                let said = output.stdout.lines().chain(output.stderr.lines());
                let all: Vec<&str> = iter::once(commands.as_str()).chain(said).collect();
                tracing::debug!(target: "mps", "{pipe}: {} ({took:.1} ms)", all.join(": "));
            }
            Err(error) => {
                tracing::debug!(target: "mps", "{pipe}: {commands}: {error} ({took:.1} ms)");
            }
        }
    }

    /// Waits for the daemon or for a session. If they are another user's, that user's time in this command is the limit.
    pub(super) fn wait_for_user<T>(
        &self,
        limit: Duration,
        wait: impl FnOnce(Duration) -> Result<T, MpsError>,
    ) -> Result<T, MpsError> {
        match self.limits_of_user()?.user() {
            Some((user, _)) => self.programs.time_for_users.wait(Uid(user), limit, wait),
            None => wait(limit),
        }
    }

    /// Returns the command for a call of the control program.
    pub(super) fn command(&self, task: Task, limits: &Limits) -> Command {
        let invocation = Invocation {
            pipe: self.pipe.clone(),
            task,
        };
        invocation.command_within(limits, &self.programs)
    }

    /// Returns the limits with the daemon's user, if that is not the caller. The record alone says who that is: what is
    /// in the place of the pipe directory may be the user's doing.
    pub(super) fn limits_of_user(&self) -> Result<Limits, MpsError> {
        let Some(name) = self.user.as_ref().filter(|_| host::caller() == Uid::ROOT) else {
            return Ok(Limits::default());
        };
        let account = Account::named(name)?.ok_or_else(|| {
            let what = format!("the daemon runs as {name}, and there is no such user");
            io::Error::new(io::ErrorKind::NotFound, what)
        })?;
        let other = Some(account).filter(|account| account.uid != Uid::ROOT);
        Ok(Limits {
            uid: other.as_ref().map(|account| account.uid.0),
            gid: other.as_ref().map(|account| account.gid),
            ..Limits::default()
        })
    }

    /// Returns the last `most` bytes of a log, or nothing if it cannot be read.
    pub(super) fn log_end(&self, log: LogFile, most: u64) -> String {
        let logs = LogDir::open(&self.log);
        logs.map_or_else(|_| String::new(), |logs| logs.end_of(log, most))
    }

    /// Returns an error about this daemon with its last log lines since this value was made, the server's after the
    /// daemon's, and their diagnosis.
    pub(super) fn failure(&self, what: impl Into<String>) -> MpsError {
        let mut what = what.into();
        let logs = LogDir::open(&self.log).ok();
        let lines_of = |log, mark| match &logs {
            Some(logs) => logs.tail(log, mark, 200),
            None => Vec::new(),
        };
        let [control, server] = self.marks;
        let control = lines_of(LogFile::Control, control);
        let server = lines_of(LogFile::Server, server);
        if let Some(diagnosis) = diagnose(&control, &server) {
            what = format!("{what}: {diagnosis}");
        }
        let mut last_lines = last_relevant(LogFile::Control, control);
        last_lines.extend(last_relevant(LogFile::Server, server));
        MpsError::Failed {
            what,
            log: self.log.clone(),
            last_lines,
        }
    }
}

/// Returns the last lines of a log that are more than a query or harmless. Unknown lines are relevant: wording differs
/// between drivers.
fn last_relevant(file: LogFile, mut lines: Vec<String>) -> Vec<String> {
    lines.retain(|line| {
        let kind = LogLine::parse(file, line).meaning().kind;
        !matches!(kind, Kind::Chatter | Kind::Benign)
    });
    lines.split_off(lines.len().saturating_sub(4))
}
