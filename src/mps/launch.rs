//! Starts a control daemon in a closed pipe directory. That is opened once the daemon is complete and recorded.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};

use super::log::cuda_error;
use super::processes::{list_pids, serves_in};
use super::{Daemon, LockHolder, MAX_PIPE_DIR, MpsError};
use crate::config::CONTROL;
use crate::host::{
    self, Account, Directory, Host, LAUNCH, Limits, MpsPrograms, Output, Process, Reader, RunError,
    Uid, caller, open_files, user_name,
};
use crate::settings::{Cpus, NOFILE};

/// The time that `nvidia-cuda-mps-control -d` may take: up to driver 595 it initialises CUDA first (0.1 s on an idle
/// H200, seconds on a node without persistence mode).
const LAUNCH_LIMIT: Duration = Duration::from_secs(60);

/// The time that the daemon may take to lock its directory after the launcher has exited.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);

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

    /// Starts the daemon for one device, and waits until it holds its lock. Only its user can enter its pipe directory
    /// until that is opened with [`Self::open_directory`].
    ///
    /// An unrecorded daemon that already runs in the directory (left by an interrupted `up`) is adopted if it serves
    /// this device, and stopped otherwise. After a failed start its processes are ended.
    pub fn launch(&self, host: &Host, wanted: &LaunchOptions) -> Result<Launched, MpsError> {
        self.check_path()?;
        self.check_files()?;
        self.check_readers(wanted)?;
        let owner = wanted.access.owner();
        if let Some(process) = self.running(host, wanted)? {
            return Ok(Launched {
                process,
                is_new: false,
                in_the_way: None,
            });
        }
        let in_the_way = self.foreign_lock_holder(host, owner);
        self.clear(&wanted.access)?;
        match self.start(host, wanted) {
            Ok(process) => Ok(Launched {
                process,
                is_new: true,
                in_the_way,
            }),
            Err(error) => Err(self.clean_up(host, owner, error, in_the_way)),
        }
    }

    /// Ends the processes of a failed start, and adds that to its error.
    fn clean_up(
        &self,
        host: &Host,
        owner: Uid,
        mut error: MpsError,
        in_the_way: Option<String>,
    ) -> MpsError {
        let found = self.count_processes(host, owner);
        let (found, unended, unknown) = match (found, self.end_mps_processes(host, owner)) {
            (Ok(found), Ok(unended)) => (found, unended, None),
            (Err(error), _) | (_, Err(error)) => (0, Vec::new(), Some(error)),
        };
        let ended = format!("what it had started ({found} processes) was ended");
        let notes: Vec<String> = [
            in_the_way,
            (found > 0).then_some(ended),
            (!unended.is_empty())
                .then(|| format!("the kernel does not end {}", list_pids(&unended))),
            unknown.map(|error| format!("what it has started may still run: {error}")),
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
            _ => error = self.failure(format!("{error}; {notes}")),
        }
        error
    }

    /// Makes the directories without any files of earlier daemons.
    fn clear(&self, access: &Access) -> Result<(), MpsError> {
        let is_foreign = match self.pipe_directory() {
            Ok(Some(pipe)) => pipe
                .stat_self()
                .is_ok_and(|meta| meta.st_uid != access.owner().0),
            Ok(None) => false,
            Err(_) => true,
        };
        if is_foreign {
            self.remove_pipe_dir()?;
        }
        self.make_directories(access)?;
        if self.remove_leftovers().is_err() {
            self.move_away()?;
            self.make_directories(access)?;
        }
        Ok(())
    }

    /// Runs the launcher, and waits for the daemon to hold its lock.
    fn start(&self, host: &Host, wanted: &LaunchOptions) -> Result<Process, MpsError> {
        let task = Task::Daemon(DaemonTask {
            device: wanted.device.clone(),
            log: self.log.clone(),
            multiuser: wanted.multiuser,
            user_dir: wanted
                .access
                .user()
                .map(|account| account.directory.clone()),
        });
        let owner = wanted.access.owner();
        let is_foreign = owner != caller();
        let launcher = self.command(task, &self.limits(wanted)?);
        // The user of the daemon owns the log directory and can make the start hang.
        let output = self.wait_for_user(LAUNCH_LIMIT, |limit| {
            self.run(&launcher, "", limit).map_err(|error| match error {
                RunError::Late { .. } if is_foreign => self.blocked_start(&error, owner),
                error => error.into(),
            })
        })?;
        // The lock decides, not the exit status, which is 0 even for an unknown option.
        let start = Instant::now();
        loop {
            if let LockHolder::Process(pid) = self.lock_holder()
                && let Some(process) = host.process(pid)
                && process.owner() == Some(owner)
                && serves_in(&process, &self.pipe)
            {
                return Ok(process);
            }
            if !output.status.success() || start.elapsed() > LOCK_LIMIT {
                return Err(self.failure(in_words(&output, &wanted.device)));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns the error for a start that the daemon's user may have blocked.
    fn blocked_start(&self, error: &RunError, owner: Uid) -> MpsError {
        let user = user_name(owner);
        let why = match self.log_that_is_no_file() {
            Some((log, kind)) => format!(
                "{} is {kind} that {user} has put there, and a daemon that opens it may wait for ever",
                log.display()
            ),
            None => format!("it runs as {user}, who can make its start hang"),
        };
        self.failure(format!("{error}: {why}"))
    }

    /// Refuses directories that one of the readers cannot enter: CUDA would silently run without MPS.
    fn check_readers(&self, wanted: &LaunchOptions) -> Result<(), MpsError> {
        // A daemon of a user writes its logs as that user.
        let logs = wanted.access.user().map(|_| &self.log);
        for path in [&self.pipe].into_iter().chain(logs) {
            for (who, reader) in &wanted.readers {
                if let Some(closed) = reader.is_kept_out_of(path) {
                    return Err(MpsError::KeptOut {
                        who: who.clone(),
                        closed,
                        path: path.clone(),
                    });
                }
            }
        }
        Ok(())
    }
}

/// Explains the exit status of the launcher, which prints nothing. The status is the low byte of CUDA's error code.
fn in_words(output: &Output, device: &str) -> String {
    let printed = format!("{}{}", output.stdout, output.stderr);
    let printed = printed.trim();
    let code = output.status.code();
    let meaning = match code {
        _ if !printed.is_empty() => printed.to_owned(),
        Some(100) => format!("CUDA sees no device {device}"),
        Some(0) => "it ended without an error and no daemon is there".to_owned(),
        // Measured with a path that is too long.
        Some(1) => "it said nothing, as where it cannot use its pipe directory".to_owned(),
        _ => match cuda_error(|error| i32::try_from(error & 0xff).ok() == code) {
            Some(words) => words.to_owned(),
            None => "it said nothing".to_owned(),
        },
    };
    let status = code.map_or_else(
        || output.status.to_string(),
        |code| format!("exit status {code}"),
    );
    format!("the control daemon of {device} did not start ({status}): {meaning}")
}

/// The options of a daemon's start.
#[derive(Clone, Debug)]
pub struct LaunchOptions {
    /// The UUID of its device.
    pub device: String,
    /// One server of root serves all users at once.
    pub multiuser: bool,
    /// The users who may connect.
    pub access: Access,
    /// Users and groups that must be able to enter the directories above, with their names.
    pub readers: Vec<(String, Reader)>,
    pub cpus: Option<Cpus>,
    /// The limit of open files; by default [`NOFILE`], or the system's limit if that is lower.
    pub nofile: Option<u64>,
}

impl LaunchOptions {
    /// True if a daemon serves this device and as many users.
    pub(super) fn fit(&self, daemon: &Process) -> bool {
        let device = daemon.environment("CUDA_VISIBLE_DEVICES");
        let is_multiuser = daemon.command().contains(MULTIUSER);
        device.as_deref() == Some(&self.device) && is_multiuser == self.multiuser
    }
}

/// The users who may connect to a daemon, as the permissions of its directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every user of the node.
    Everybody,
    /// The user who runs `mig-mps`.
    Owner,
    /// The members of a group, by its gid.
    Group(u32),
    /// Another user, who also runs the daemon.
    User(Account),
}

impl Access {
    pub(super) fn mode(&self) -> u32 {
        match self {
            Self::Everybody => 0o755,
            Self::Group(_) => 0o750,
            Self::Owner | Self::User(_) => 0o700,
        }
    }

    /// Returns the other user who runs the daemon.
    pub(super) fn user(&self) -> Option<&Account> {
        match self {
            Self::User(account) => Some(account),
            _ => None,
        }
    }

    /// The user who runs the daemon and owns its directories.
    pub(super) fn owner(&self) -> Uid {
        self.user().map_or_else(host::caller, |account| account.uid)
    }

    /// Makes a directory of the owner for them.
    pub(super) fn make_in(
        &self,
        parent: &Directory,
        name: impl AsRef<OsStr>,
        mode: u32,
    ) -> io::Result<Directory> {
        let group = match self {
            Self::Group(group) => Some(*group),
            _ => self.user().map(|account| account.gid),
        };
        parent.make_child_of(name, mode, self.owner(), group)
    }
}

/// The lowest limit of open files at which a daemon works. On an H200 it worked with 64; with 20 its server did not
/// start and its log grew without pause.
const FEWEST_FILES: u64 = 64;

impl Daemon {
    /// Refuses a limit of open files that is too low for a daemon. Root can raise any limit.
    pub(super) fn check_files(&self) -> Result<(), MpsError> {
        match open_files() {
            (_, Some(most)) if most < FEWEST_FILES && caller() != Uid::ROOT => {
                Err(self.failure(format!(
                    "this user may have {most} files open, and an MPS daemon needs {FEWEST_FILES}: raise ulimit -n"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Returns the user and the limits of the daemon, without those that the caller already has.
    pub(super) fn limits(&self, wanted: &LaunchOptions) -> Result<Limits, MpsError> {
        let files = wanted.nofile.unwrap_or(NOFILE);
        let (current, _) = open_files();
        let differs = current != Some(files);
        Ok(Limits {
            groups_of: wanted.access.user().map(|account| account.name.clone()),
            cpus: wanted.cpus.as_ref().map(|cpus| cpus.numbers().collect()),
            files: differs.then_some(files),
            or_fewer: differs && wanted.nofile.is_none(),
            ..self.limits_of_user()?
        })
    }

    /// Checks the user and the limits of the running daemon.
    pub fn verify(&self, process: &Process, wanted: &LaunchOptions) -> Result<(), MpsError> {
        let checks = [
            (
                "its user",
                Some(wanted.access.owner().to_string()),
                process.owner().map(|uid| uid.to_string()),
            ),
            (
                "cpus",
                wanted.cpus.as_ref().map(Cpus::to_string),
                process.cpus(),
            ),
            (
                "nofile",
                wanted.nofile.map(|files| files.to_string()),
                process.open_files().map(|files| files.to_string()),
            ),
        ];
        for (key, set, is) in checks {
            if let Some(set) = set
                && is.as_ref() != Some(&set)
            {
                let is = is.as_deref().unwrap_or("hidden");
                return Err(self.failure(format!("{key} was set to {set} and reads back as {is}")));
            }
        }
        Ok(())
    }
}

/// Lets one server of root serve all users at once.
pub(super) const MULTIUSER: &str = "-multiuser-server";

/// A call of NVIDIA's control program, which is arguments of the helper.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// The `CUDA_MPS_PIPE_DIRECTORY`
    #[arg(long)]
    pub pipe: PathBuf,
    #[command(subcommand)]
    pub task: Task,
}

/// The task of a call of the control program.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Task {
    /// Become the daemon of a device
    Daemon(DaemonTask),
    /// Pass on the commands on standard input
    Session,
}

#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct DaemonTask {
    /// The UUID of the device
    #[arg(long)]
    pub device: String,
    /// The `CUDA_MPS_LOG_DIRECTORY`
    #[arg(long)]
    pub log: PathBuf,
    /// Let one server of root serve all users at once
    #[arg(long)]
    pub multiuser: bool,
    /// `HOME` of the daemon's user, if that is not the caller
    #[arg(long)]
    pub user_dir: Option<PathBuf>,
}

/// The variable of the caller that every call keeps.
const KEPT: &str = "LD_LIBRARY_PATH";

impl Invocation {
    /// Returns the command, run as the caller. Its environment is clean: servers inherit it, and the caller's `CUDA_*`
    /// must not reach them.
    pub fn command(&self, programs: &MpsPrograms) -> Command {
        let mut command = clean(&programs.control, programs);
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe)
            .env("CUDA_MPS_PROTOCOL_VERSION", "2");
        let mut user_dir = std::env::var_os("HOME");
        if let Task::Daemon(daemon) = &self.task {
            command
                .arg("-d")
                .args(daemon.multiuser.then_some(MULTIUSER))
                .env("CUDA_VISIBLE_DEVICES", &daemon.device)
                .env("CUDA_MPS_LOG_DIRECTORY", &daemon.log);
            user_dir = daemon.user_dir.clone().map(Into::into).or(user_dir);
        }
        command.envs(user_dir.map(|user_dir| ("HOME", user_dir)));
        command
    }

    /// Returns the command, run as another user or with other limits, and a daemon in a scope of its own.
    pub(super) fn command_within(&self, limits: &Limits, programs: &MpsPrograms) -> Command {
        let command = self.limited_command(limits, programs);
        match (&self.task, &programs.scopes) {
            (Task::Daemon(daemon), Some(scopes)) => scopes.wrap(&daemon.device, &command),
            _ => command,
        }
    }

    /// Returns the command for these limits. The helper applies them and becomes the control program.
    fn limited_command(&self, limits: &Limits, programs: &MpsPrograms) -> Command {
        if *limits == Limits::default() {
            return self.command(programs);
        }
        let mut command = clean(&programs.helper, programs);
        command
            .env(CONTROL, &programs.control)
            .args(limits.words(LAUNCH))
            .args(self.arguments());
        command
    }

    /// Returns the arguments of the helper for this call.
    fn arguments(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["--pipe".into(), self.pipe.clone().into()];
        match &self.task {
            Task::Session => words.push("session".into()),
            Task::Daemon(daemon) => {
                words.extend(["daemon", "--device", &daemon.device, "--log"].map(Into::into));
                words.push((&daemon.log).into());
                words.extend(daemon.multiuser.then(|| "--multiuser".into()));
                if let Some(user_dir) = &daemon.user_dir {
                    words.extend(["--user-dir".into(), user_dir.into()]);
                }
            }
        }
        words
    }
}

fn clean(program: &Path, programs: &MpsPrograms) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", &programs.path);
    command.envs(std::env::var_os(KEPT).map(|value| (KEPT, value)));
    command
}
