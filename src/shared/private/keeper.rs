//! `mig-mps keep`: a process that starts the daemon of one device, keeps it while programs of `run --private` use it, and ends
//! it when the last has ended. It outlives all of these, however they end.

use std::io::{ErrorKind, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::daemon::PrivateDirectory;
use crate::error::{CommandError, ErrorContext as _, Result, command_error};
use crate::host::{
    Environment, FileError, FileResult, KEEP, Pid, ProcessHandle, Uid, caller, ignore_termination,
    spawn_detached,
};
use crate::render::json::{Message, to_json_line};

/// The arguments of the helper.
#[derive(Args, Debug)]
pub struct KeepArgs {
    /// The UUID of the device, or those of all GPUs of a joint device
    #[arg(long, value_delimiter = ',')]
    pub device: Vec<String>,
    /// The name of the socket by which programs find this process
    #[arg(long)]
    pub socket: String,
    /// The process of the first program, which is about to join
    #[arg(long)]
    pub first: u32,
    /// Do the work in a process that is no descendant of the caller
    ///
    /// Slurm kills the processes of a step that come from its tasks all at once.
    #[arg(long)]
    pub apart: bool,
}

/// The answer to a program that joins.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum KeeperAnswer {
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
            let device = self.device.join(",");
            keeper.args([KEEP, "--device", &device, "--socket", &self.socket]);
            keeper.args(["--first", &self.first.to_string()]);
            return spawn_detached(&keeper).context("cannot start the keeper");
        }
        ignore_termination()?;
        let listener = match UnixListener::bind_addr(&socket_address(&self.socket)?) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Ok(()),
            bound => bound?,
        };
        listener.set_nonblocking(true)?;
        let mut programs = Programs::new(listener, Pid(self.first));
        if !programs.are_expected()? {
            return Ok(());
        }
        let environment = Environment::read();
        // A program that waits for its keeper to end holds its connection until then.
        let _last = match PrivateDirectory::with_daemon(&environment, &self.device) {
            Ok(directory) => {
                let ready = KeeperAnswer::Ready(directory.path().to_owned());
                let last = programs.answer_programs(&ready);
                directory.stop_and_remove();
                last?
            }
            Err(error) => {
                let Message { what, hints } = error.message();
                programs.answer_programs(&KeeperAnswer::Failed { what, hints })?
            }
        };
        Ok(())
    }
}

/// Returns the address of a socket, which the kernel removes with its process.
pub(super) fn socket_address(socket: &str) -> FileResult<SocketAddr> {
    Ok(SocketAddr::from_abstract_name(socket)?)
}

/// Returns the user and the process at the other end; the process is 0 if it is in a namespace that cannot be seen.
pub(super) fn peer_credentials(stream: &UnixStream) -> FileResult<(Uid, Pid)> {
    let peer = getsockopt(stream, PeerCredentials)?;
    Ok((Uid(peer.uid()), Pid(peer.pid().unsigned_abs())))
}

/// The time in which the first program has to join.
const FIRST_JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The time that a program may take to read the answer, which fits into the socket.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// The programs that use the daemon.
struct Programs {
    listener: UnixListener,
    /// The process of the first one, until a program has joined; `None` once it has ended.
    first: Option<ProcessHandle>,
    members: Vec<UnixStream>,
}

impl Programs {
    fn new(listener: UnixListener, first: Pid) -> Self {
        Self {
            listener,
            first: ProcessHandle::open(first).ok(),
            members: Vec::new(),
        }
    }

    /// True if the first program is there, or another one is about to join.
    fn are_expected(&mut self) -> FileResult<bool> {
        self.first.take_if(|first| first.has_ended());
        let mut watched = [PollFd::new(&self.listener, PollFlags::IN)];
        Ok(self.first.is_some() || poll(&mut watched, Some(&Timespec::default()))? > 0)
    }

    /// Answers every program of this user that joins, until the last one has left. Returns the last one's connection.
    fn answer_programs(&mut self, answer: &KeeperAnswer) -> Result<Vec<UnixStream>> {
        let answer = to_json_line(answer)?;
        let until = Instant::now() + FIRST_JOIN_TIMEOUT;
        let mut has_begun = false;
        while has_begun || self.are_expected()? {
            // Strangers who connect do not prolong it.
            let left = until.saturating_duration_since(Instant::now());
            let limit = if has_begun {
                None
            } else {
                Timespec::try_from(left).ok()
            };
            let mut watched = vec![PollFd::new(&self.listener, PollFlags::IN)];
            for member in &self.members {
                watched.push(PollFd::new(member, PollFlags::IN));
            }
            if !has_begun {
                watched.extend(self.first.as_ref().map(ProcessHandle::poll_fd));
            }
            match poll(&mut watched, limit.as_ref()) {
                Ok(0) => break,
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(FileError::from(error).into()),
            }
            // A member writes nothing: it is ready once it has left.
            let is_ready: Vec<bool> = watched
                .iter()
                .map(|one| !one.revents().is_empty())
                .collect();
            let is_joined = is_ready[0];
            let mut has_left = is_ready[1..].iter().copied();
            let (left, staying): (Vec<_>, Vec<_>) = std::mem::take(&mut self.members)
                .into_iter()
                .partition(|_| has_left.next().unwrap_or(false));
            self.members = staying;
            if is_joined && let Some(member) = accept_member(&self.listener, &answer) {
                self.members.push(member);
                has_begun = true;
            }
            if self.members.is_empty() && has_begun {
                return Ok(left);
            }
        }
        Ok(Vec::new())
    }
}

/// Takes a program in; `None` for one of another user, who may know the socket's name.
fn accept_member(listener: &UnixListener, answer: &str) -> Option<UnixStream> {
    let (mut member, _) = listener.accept().ok()?;
    let (user, _) = peer_credentials(&member).ok()?;
    if user != caller() {
        return None;
    }
    // One that has ended meanwhile has joined, and left.
    let _ = member.set_write_timeout(Some(WRITE_TIMEOUT));
    let _ = member.write_all(answer.as_bytes());
    Some(member)
}

impl KeeperAnswer {
    /// Returns the directory of the daemon, or the error with which it did not start.
    pub(super) fn into_directory(self) -> Result<PathBuf> {
        match self {
            Self::Ready(directory) => Ok(directory),
            Self::Failed { what, hints } => Err(CommandError {
                hints,
                ..command_error(what)
            }),
        }
    }
}
