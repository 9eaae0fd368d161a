//! Starts a control daemon in a closed pipe directory. That is opened once the daemon is complete and recorded.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::log::describe_cuda_error;
use super::processes::{
    MpsProcesses, PROTOCOL_VARIABLE, PROTOCOL_VERSION, format_pids, uses_pipe_dir,
};
use super::{Daemon, LockHolder, MAX_PIPE_DIR, MpsError};
use crate::config::CONTROL;
use crate::host::{
    Access, Host, LAUNCH, Limits, MIN_OPEN_FILES, Output, Permission, Process, Reader, Uid, caller,
    clean_command, find_list_fault, open_file_limits,
};
use crate::settings::{Cpus, NOFILE};

/// The time that `nvidia-cuda-mps-control -d` may take: up to driver 595 it initializes CUDA first (0.1 s on an idle
/// H200, seconds on a node without persistence mode).
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(60);

/// The time that the daemon may take to lock its directory after the launcher has exited.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A running daemon.
#[derive(Clone, Debug)]
pub struct Launched {
    pub process: Process,
    /// It was started by this launch. A daemon that was already running may have clients.
    pub is_new: bool,
    /// A process that held the lock of the directory before, in words.
    pub in_the_way: Option<String>,
}

impl Daemon {
    /// Refuses a pipe directory whose path is too long for a socket address.
    pub fn check_path(&self) -> Result<(), MpsError> {
        if self.pipe.as_os_str().len() > MAX_PIPE_DIR {
            return Err(MpsError::PathTooLong(self.pipe.clone()));
        }
        Ok(())
    }

    /// Starts the daemon for one device, and waits until it holds its lock. Only the caller can enter its pipe directory
    /// until that is opened with [`Self::open_directories`].
    ///
    /// An unrecorded daemon that already runs in the directory (left by an interrupted `up`) is adopted if it serves
    /// this device, and stopped otherwise. After a failed start its processes are ended.
    pub fn launch(
        &self,
        host: &Host,
        processes: &MpsProcesses,
        wanted: &LaunchRequest,
    ) -> Result<Launched, MpsError> {
        self.check_launch(wanted)?;
        if let Some(process) = self.adopt_unrecorded(host, processes, wanted)? {
            return Ok(Launched {
                process,
                is_new: false,
                in_the_way: None,
            });
        }
        let in_the_way = self.foreign_lock_holder(host);
        self.prepare_directories(&wanted.access)?;
        match self.start_process(host, wanted) {
            Ok(process) => Ok(Launched {
                process,
                is_new: true,
                in_the_way,
            }),
            Err(error) => Err(self.clean_up(host, error, in_the_way)),
        }
    }

    /// Checks what a launch needs, and touches nothing.
    pub fn check_launch(&self, wanted: &LaunchRequest) -> Result<(), MpsError> {
        self.check_path()?;
        // Root can raise any limit.
        if let (_, Some(most)) = open_file_limits()
            && most < MIN_OPEN_FILES
            && caller() != Uid::ROOT
        {
            return Err(self.error_with_logs(format!(
                "this user may have {most} files open, but an MPS daemon needs {MIN_OPEN_FILES}; raise ulimit -n"
            )));
        }
        // CUDA would silently run without MPS.
        if let Some((who, reader)) = &wanted.reader
            && let Some(closed) = reader.find_closed_directory(&self.pipe)
        {
            return Err(MpsError::KeptOut {
                who: who.clone(),
                closed,
                path: self.pipe.clone(),
            });
        }
        Ok(())
    }

    /// Ends the processes of a failed start, and adds that to its error.
    fn clean_up(&self, host: &Host, mut error: MpsError, in_the_way: Option<String>) -> MpsError {
        let ended = MpsProcesses::read(host).and_then(|processes| {
            let found = self.count_processes(host, &processes, caller());
            Ok((found, self.end_mps_processes(host, &processes, caller())?))
        });
        let (found, unended, unknown) = match ended {
            Ok((found, unended)) => (found, unended, None),
            Err(error) => (0, Vec::new(), Some(error)),
        };
        let ended = format!("the processes that it had started ({found}) were ended");
        let notes: Vec<String> = [
            in_the_way,
            (found > 0).then_some(ended),
            (!unended.is_empty())
                .then(|| format!("the kernel does not end {}", format_pids(&unended))),
            unknown.map(|error| format!("processes that it has started may still run: {error}")),
        ]
        .into_iter()
        .flatten()
        .collect();
        if notes.is_empty() {
            return error;
        }
        let notes = notes.join("; ");
        match &mut error {
            MpsError::Failed { what, .. } => *what = format!("{what}; {notes}"),
            _ => error = self.error_with_logs(format!("{error}; {notes}")),
        }
        error
    }

    /// Makes the directories without any files of earlier daemons.
    fn prepare_directories(&self, access: &Access) -> Result<(), MpsError> {
        // If it cannot be opened, it is not ours: it may be a file, or a mount point, into which nothing looks.
        let is_ours = self.pipe_directory().is_ok() && !self.is_foreign().unwrap_or(true);
        let acl_fault =
            is_ours.then(|| find_list_fault(&self.pipe, &Access::Owner, Permission::Enter));
        if !is_ours
            || acl_fault
                .flatten()
                .is_some_and(|fault| fault.writers.is_some())
        {
            self.remove_pipe_dir()?;
        }
        self.make_directories(access)?;
        if self.remove_leftovers().is_err() {
            self.quarantine_pipe_dir()?;
            self.make_directories(access)?;
        }
        Ok(())
    }

    /// Runs the launcher, and waits for the daemon to hold its lock.
    fn start_process(&self, host: &Host, wanted: &LaunchRequest) -> Result<Process, MpsError> {
        let output = self.run(&self.start_command(wanted), "", LAUNCH_TIMEOUT)?;
        // The lock decides, not the exit status, which is 0 even for an unknown option.
        let start = Instant::now();
        loop {
            if let LockHolder::Process(pid) = self.lock_holder()
                && let Some(process) = host.find_process(pid)
                && process.owner() == Some(caller())
                && uses_pipe_dir(&process, &self.pipe)
            {
                return Ok(process);
            }
            if !output.status.success() || start.elapsed() > LOCK_TIMEOUT {
                return Err(self.error_with_logs(describe_exit_status(&output, &wanted.device)));
            }
            std::thread::sleep(LOCK_POLL_INTERVAL);
        }
    }

    /// Returns the command that starts the daemon, in a scope of its own. The helper applies limits, and becomes the control
    /// program with the same environment.
    fn start_command(&self, wanted: &LaunchRequest) -> Command {
        let programs = &self.programs;
        let limits = wanted.limits();
        let mut command = if limits == Limits::default() {
            let mut command = self.clean_command(&programs.control);
            command.args(daemon_args(wanted.multiuser));
            command
        } else {
            let mut command = self.clean_command(&programs.helper);
            command.env(CONTROL, &programs.control);
            command.arg(LAUNCH).args(limits.to_args());
            command.args(wanted.multiuser.then_some("--multiuser"));
            command
        };
        command
            .env("CUDA_VISIBLE_DEVICES", &wanted.visible)
            .env("CUDA_MPS_LOG_DIRECTORY", &self.log);
        match &programs.scopes {
            Some(scopes) => {
                let what = format!("MPS control daemon of {}", wanted.device);
                scopes.wrap_command(&wanted.device, &what, &command)
            }
            None => command,
        }
    }

    /// Checks the user and the limits of the running daemon.
    pub fn check_user_and_limits(
        &self,
        process: &Process,
        wanted: &LaunchRequest,
    ) -> Result<(), MpsError> {
        let checks = [
            (
                "its user",
                Some(caller().to_string()),
                process.owner().map(|uid| uid.to_string()),
            ),
            (
                "cpus",
                wanted.cpus.as_ref().map(Cpus::to_string),
                process.allowed_cpus(),
            ),
            (
                "nofile",
                wanted.nofile.map(|files| files.to_string()),
                process.open_file_limit().map(|files| files.to_string()),
            ),
        ];
        for (key, set, is) in checks {
            if let Some(set) = set
                && is.as_ref() != Some(&set)
            {
                let is = is.as_deref().unwrap_or("hidden");
                return Err(
                    self.error_with_logs(format!("{key} was set to {set} but reads back as {is}"))
                );
            }
        }
        Ok(())
    }
}

/// Explains the exit status of the launcher, which prints nothing. The status is the low byte of CUDA's error code.
fn describe_exit_status(output: &Output, device: &str) -> String {
    let printed = format!("{}{}", output.stdout, output.stderr);
    let printed = printed.trim();
    let code = output.status.code();
    let meaning = match code {
        _ if !printed.is_empty() => printed.trim_start_matches("error: ").to_owned(),
        Some(100) => format!("CUDA sees no device {device}"),
        Some(0) => "it exited without an error, but no daemon is running".to_owned(),
        // Measured with a path that is too long.
        Some(1) => "it printed nothing; this usually means that it cannot use its pipe directory"
            .to_owned(),
        _ => match describe_cuda_error(|error| i32::try_from(error & 0xff).ok() == code) {
            Some(words) => words.to_owned(),
            None => "it printed nothing".to_owned(),
        },
    };
    let status = code.map_or_else(
        || output.status.to_string(),
        |code| format!("exit status {code}"),
    );
    format!("the control daemon of {device} did not start ({status}): {meaning}")
}

/// A request to launch the control daemon of a device.
#[derive(Clone, Debug)]
pub struct LaunchRequest {
    /// The UUID of its device.
    pub device: String,
    /// The same as CUDA takes it: the UUIDs of all GPUs of a joint device.
    pub visible: String,
    /// True if a single server, running as root, serves all users at once.
    pub multiuser: bool,
    /// The users who may connect, by the permissions of the daemon's directories.
    pub access: Access,
    /// The user or group that must be able to enter the parent directories, with its name.
    pub reader: Option<(String, Reader)>,
    pub cpus: Option<Cpus>,
    /// The limit of open files; by default [`NOFILE`], or the system's limit if that is lower.
    pub nofile: Option<u64>,
}

impl LaunchRequest {
    /// Returns its limits, without those that the caller already has.
    fn limits(&self) -> Limits {
        let files = self.nofile.unwrap_or(NOFILE);
        let differs = open_file_limits().0 != Some(files);
        Limits {
            cpus: self.cpus.as_ref().map(|cpus| cpus.numbers().collect()),
            files: differs.then_some(files),
            or_fewer: differs && self.nofile.is_none(),
        }
    }
}

/// Lets one server of root serve all users at once.
pub(super) const MULTIUSER: &str = "-multiuser-server";

/// Returns the arguments with which the control program becomes a daemon.
fn daemon_args(multiuser: bool) -> impl Iterator<Item = &'static str> {
    ["-d"].into_iter().chain(multiuser.then_some(MULTIUSER))
}

/// Returns the command by which the helper, in the environment of a daemon, becomes that daemon.
pub fn become_daemon_command(control: &Path, multiuser: bool) -> Command {
    let mut command = Command::new(control);
    command.args(daemon_args(multiuser)).env_remove(CONTROL);
    // systemd-run adds it.
    command.env_remove("INVOCATION_ID");
    command
}

/// The variables of the caller that every call keeps.
const KEPT_VARIABLES: [&str; 2] = ["HOME", "LD_LIBRARY_PATH"];

impl Daemon {
    /// Returns the command of a program in a clean environment: servers inherit it, and the caller's `CUDA_*` must not reach
    /// them.
    pub(super) fn clean_command(&self, program: &Path) -> Command {
        let mut command = clean_command(program, &KEPT_VARIABLES);
        command
            .env("PATH", &self.programs.path)
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe)
            .env(PROTOCOL_VARIABLE, PROTOCOL_VERSION);
        command
    }
}
