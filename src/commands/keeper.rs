//! `mig-mps keep`: a process that starts the daemon of one device, keeps it while programs of `run --private` use it, and ends
//! it when the last has ended. It outlives all of these, however they end.

use std::fs::{File, Permissions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::drain::AT_ONCE;
use super::{LOCK_LIMIT, locked};
use crate::apply::{self, Allowed, ApplyContext, OnFailure};
use crate::error::{CommandError, Context as _, Result, failed};
use crate::host::{
    Directory, Environment, KEEP, MpsPrograms, Pid, Uid, caller, outlast_signals, raise_memory,
    raise_open_files, start_apart, take_limits_of_services,
};
use crate::mps::MAX_PIPE_DIR;
use crate::node::{ANSWER_LIMIT, Detail, Node, observe, observe_records, observe_without_driver};
use crate::plan::{self, Down, Plan};
use crate::render::json::{Message, line};
use crate::render::{ProgressForm, progress};
use crate::state::RunDir;

/// The arguments of the helper.
#[derive(Args, Debug)]
pub struct KeepArgs {
    /// The UUID of the device
    #[arg(long)]
    pub device: String,
    /// The name of the socket by which programs find this process
    #[arg(long)]
    pub socket: String,
    /// Do the work in a process that is no descendant of the caller
    ///
    /// Slurm kills the processes of a step that come from its tasks all at once.
    #[arg(long)]
    pub apart: bool,
}

/// The answer to a program that joins.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Answer {
    /// The daemon is ready in this directory.
    Ready(PathBuf),
    /// It did not start.
    Failed { what: String, hints: Vec<String> },
}

impl KeepArgs {
    /// Returns once all programs have left, or another process does the work. If one has the socket already, there is
    /// nothing to do.
    pub fn run(&self) -> Result<()> {
        if self.apart {
            let mut keeper = Command::new(std::env::args_os().next().unwrap_or_default());
            keeper.envs(std::env::vars_os());
            keeper.args([KEEP, "--device", &self.device, "--socket", &self.socket]);
            return start_apart(&keeper).context("cannot start the keeper");
        }
        outlast_signals()?;
        let listener = match UnixListener::bind_addr(&address(&self.socket)?) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Ok(()),
            bound => bound?,
        };
        listener.set_nonblocking(true)?;
        let environment = Environment::read();
        // A program that waits for its keeper to end holds its connection until then.
        let _last = match PrivateDirectory::with_daemon(&environment, &self.device) {
            Ok(directory) => {
                let ready = Answer::Ready(directory.directory.path().to_owned());
                let last = attend(&listener, &ready);
                directory.end();
                last?
            }
            Err(error) => {
                let Message { what, hints } = error.message();
                attend(&listener, &Answer::Failed { what, hints })?
            }
        };
        Ok(())
    }
}

/// Returns the address of a socket, which the kernel removes with its process.
pub(super) fn address(socket: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(socket)
}

/// Returns the user and the process at the other end; the process is 0 if it is in a namespace that cannot be seen.
pub(super) fn peer(stream: &UnixStream) -> io::Result<(Uid, Pid)> {
    let peer = getsockopt(stream, PeerCredentials)?;
    Ok((Uid(peer.uid()), Pid(peer.pid().unsigned_abs())))
}

/// The time in which the first program has to join.
const FIRST_LIMIT: Duration = Duration::from_secs(5);

/// The time that a program may take to read the answer, which fits into the socket.
const WRITE_LIMIT: Duration = Duration::from_secs(1);

/// Answers every program of this user that joins, until the last one has left. Returns the last one's connection.
fn attend(listener: &UnixListener, answer: &Answer) -> Result<Vec<UnixStream>> {
    let answer = line(answer)?;
    let mut members: Vec<UnixStream> = Vec::new();
    let mut has_begun = false;
    let until = Instant::now() + FIRST_LIMIT;
    loop {
        let mut watched = vec![PollFd::new(listener, PollFlags::IN)];
        let of_members = members.iter();
        watched.extend(of_members.map(|member| PollFd::new(member, PollFlags::IN)));
        // Strangers who connect do not prolong it.
        let left = until.saturating_duration_since(Instant::now());
        let limit = Timespec::try_from(left).ok().filter(|_| !has_begun);
        match poll(&mut watched, limit.as_ref()) {
            Ok(0) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(io::Error::from(error).into()),
        }
        // A member writes nothing: it is ready once it has left.
        let mut events = watched.iter().map(|one| !one.revents().is_empty());
        let is_joined = events.next().unwrap_or(false);
        let has_left: Vec<bool> = events.collect();
        let mut has_left = has_left.into_iter();
        let (left, mut staying): (Vec<_>, Vec<_>) = members
            .into_iter()
            .partition(|_| has_left.next().unwrap_or(false));
        if is_joined && let Some(member) = join(listener, &answer) {
            staying.push(member);
            has_begun = true;
        }
        if staying.is_empty() && has_begun {
            return Ok(left);
        }
        members = staying;
    }
}

/// Takes a program in; `None` for one of another user, who may know the socket's name.
fn join(listener: &UnixListener, answer: &str) -> Option<UnixStream> {
    let (mut member, _) = listener.accept().ok()?;
    let (user, _) = peer(&member).ok()?;
    if user != caller() {
        return None;
    }
    // One that has ended meanwhile has joined, and left.
    let _ = member.set_write_timeout(Some(WRITE_LIMIT));
    let _ = member.write_all(answer.as_bytes());
    Some(member)
}

/// The start of the names of private directories.
const PREFIX: &str = "mig-mps-";

/// The letters after it, which nobody can guess.
const RANDOM: usize = 6;

/// The file that tells a private directory from a run directory to which a user has given such a name.
const MARK: &str = "private";

/// The hint where the reason may be in logs.
const LOGS: &str = "mig-mps doctor finds known causes; MIG_MPS_LOG_DIR may name a directory in which the logs stay";

/// A directory of one device's daemon, its records and its logs, which nobody else can enter.
struct PrivateDirectory {
    directory: TempDir,
    environment: Environment,
    /// Programs and this process hold it: a directory without holders is what killed ones have left. systemd-tmpfiles
    /// leaves a locked directory alone, however old its files are.
    _lock: File,
}

impl PrivateDirectory {
    /// Makes the directory and starts the daemon. First ends what killed processes have left.
    fn with_daemon(caller: &Environment, device: &str) -> Result<Self> {
        raise_open_files()?;
        raise_memory()?;
        // The limits of a job hold for its daemon too.
        let _ = take_limits_of_services();
        for place in places() {
            sweep(caller, &place);
        }
        let directory = make(device)?;
        let lock = File::open(directory.path())?;
        lock.lock_shared()?;
        File::create_new(directory.path().join(MARK))?;
        let environment = caller.within(directory.path());
        let private = Self {
            directory,
            environment,
            _lock: lock,
        };
        match start(&private.environment, device) {
            Ok(()) => Ok(private),
            Err(mut error) => {
                // Its logs are removed with it.
                let own = private.directory.path().display().to_string();
                if error.hints.iter().any(|hint| hint.contains(&own)) {
                    error.hints = vec![LOGS.to_owned()];
                }
                private.end();
                Err(error)
            }
        }
    }

    /// Ends the daemon and removes the directory. That stays if the kernel cannot end a process.
    fn end(self) {
        if !is_stopped(&self.environment, self.directory.path()) {
            let _ = self.directory.keep();
        }
    }
}

/// Returns the directories in which a private one may be, the best one first.
pub(super) fn places() -> Vec<PathBuf> {
    let named =
        ["XDG_RUNTIME_DIR", "TMPDIR"].map(|name| std::env::var_os(name).unwrap_or_default());
    let mut places: Vec<PathBuf> = named.into_iter().map(PathBuf::from).collect();
    places.push(PathBuf::from("/tmp"));
    // The answer to programs is text.
    places.retain(|place| place.is_absolute() && place.to_str().is_some());
    places.dedup();
    places
}

/// Makes a private directory that no other user can replace, and in which the path of the device's pipe directory is short
/// enough for a socket.
fn make(device: &str) -> Result<TempDir> {
    let mut causes = Vec::new();
    for place in places() {
        let path = place.join(format!("{PREFIX}{}", "x".repeat(RANDOM)));
        let length = RunDir::at(&path).pipe_dir(device).as_os_str().len();
        if length > MAX_PIPE_DIR {
            causes.push(format!("{}: its path is too long", place.display()));
            continue;
        }
        let mut builder = tempfile::Builder::new();
        builder.prefix(PREFIX).rand_bytes(RANDOM);
        builder.permissions(Permissions::from_mode(0o700));
        let made = builder.tempdir_in(&place);
        match made.and_then(|made| Directory::open(made.path()).map(|_| made)) {
            Ok(directory) => return Ok(directory),
            Err(error) => causes.push(error.to_string()),
        }
    }
    let causes = causes.join("; ");
    let what = format!("cannot make a directory for a private daemon: {causes}");
    Err(failed(what).hint("set TMPDIR to a directory of this machine with a short path"))
}

/// Starts the device's daemon, with a server.
fn start(environment: &Environment, device: &str) -> Result<()> {
    let directories = environment.directories()?;
    let _lock = locked(environment, &directories, LOCK_LIMIT)?;
    let node = observe(environment, Detail::CLIENTS)?;
    let plan = plan::private(&node, &RunDir::at(&directories.run), device)?;
    carry_out(environment, &node, &plan, OnFailure::RollBack)
}

/// Stops the daemon in a private directory. Returns false if it may still run: its record may be one that cannot be read.
fn is_stopped(environment: &Environment, directory: &Path) -> bool {
    stop(environment).is_ok() && RunDir::at(directory).has_no_records()
}

/// Stops the daemon that has a record, whatever it does, and ends its clients.
fn stop(environment: &Environment) -> Result<()> {
    let directories = environment.directories()?;
    let mut node = observe_records(environment)?;
    let Some(name) = node
        .served()
        .map(|served| served.record.name.clone())
        .next()
    else {
        return Ok(());
    };
    node.devices.retain(|device| device.name == name);
    observe_without_driver(environment, &mut node, ANSWER_LIMIT);
    let all = Down {
        devices: Vec::new(),
        force: Some(AT_ONCE),
        destroy_mig: false,
        disable_mig: false,
        purge: false,
    };
    let plan = plan::down(&node, &RunDir::at(&directories.run), &all)?;
    carry_out(environment, &node, &plan, OnFailure::GoOn)
}

fn carry_out(
    environment: &Environment,
    node: &Node,
    plan: &Plan,
    on_failure: OnFailure,
) -> Result<()> {
    // The daemon belongs to the program, and not to the machine.
    let programs = MpsPrograms {
        scopes: None,
        ..environment.mps_programs()?
    };
    let context = ApplyContext {
        environment,
        directories: &environment.directories()?,
        programs: &programs,
        node,
        allowed: Allowed::default(),
    };
    let silent = progress(plan, ProgressForm::None);
    Ok(apply::run(plan, &context, silent.as_ref(), on_failure)?)
}

/// Ends the daemons that killed processes of this user have left in private directories, and removes these.
fn sweep(environment: &Environment, place: &Path) {
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let is_private = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if is_private {
            end_left(environment, &entry.path());
        }
    }
}

/// Ends the daemon in a private directory of this user, and removes the directory, unless somebody holds it.
pub(super) fn end_left(environment: &Environment, directory: &Path) {
    let is_own = directory
        .symlink_metadata()
        .is_ok_and(|meta| meta.is_dir() && Uid(meta.uid()) == caller());
    // One that was just made is not locked yet, and not marked.
    if !is_own || !directory.join(MARK).exists() {
        return;
    }
    let Ok(lock) = File::open(directory) else {
        return;
    };
    match lock.try_lock() {
        Ok(()) if is_stopped(&environment.within(directory), directory) => {
            let _ = std::fs::remove_dir_all(directory);
        }
        Ok(()) | Err(TryLockError::WouldBlock | TryLockError::Error(_)) => {}
    }
}

impl Answer {
    /// Returns the directory of the daemon, or the error with which it did not start.
    pub(super) fn directory(self) -> Result<PathBuf> {
        match self {
            Self::Ready(directory) => Ok(directory),
            Self::Failed { what, hints } => Err(CommandError {
                hints,
                ..failed(what)
            }),
        }
    }
}
