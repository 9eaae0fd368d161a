//! Signals a process through a pidfd, after checking that it is still the same one.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid as RawPid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{Host, Pid, Process, StartTime};

/// A process by its pidfd, which never refers to a later process with the same pid.
#[derive(Debug)]
pub struct ProcessHandle {
    pub pid: Pid,
    pidfd: OwnedFd,
}

impl Host {
    /// Opens the process with this pid and start time. Returns `None` if it is gone, and an error if that cannot be
    /// determined.
    pub fn open_process(&self, pid: Pid, started: StartTime) -> io::Result<Option<ProcessHandle>> {
        let unknown = |error: io::Error| {
            let what = format!("cannot tell if process {pid} still runs: {error}");
            io::Error::new(error.kind(), what)
        };
        // Opened before the check: it cannot refer to another process afterwards.
        let held = match ProcessHandle::open(pid) {
            Ok(held) => held,
            Err(Errno::SRCH) => return Ok(None),
            Err(error) => return Err(unknown(error.into())),
        };
        match Process::read(&self.root.join("proc"), pid) {
            Ok(process) => Ok(process
                .filter(|process| process.started == started)
                .map(|_| held)),
            Err(_) if held.has_ended() => Ok(None),
            Err(error) => Err(unknown(error)),
        }
    }

    /// Returns the inode of this process's pid namespace, or `None` if it is hidden. Pids of another namespace mean
    /// nothing here.
    pub fn pid_namespace(&self) -> Option<u64> {
        let namespace = std::fs::metadata(self.root.join("proc/self/ns/pid")).ok()?;
        Some(namespace.ino())
    }

    /// True if there is no process with this pid, or it has exited. Works even if `/proc` hides it.
    pub fn has_ended(&self, pid: Pid) -> bool {
        match ProcessHandle::open(pid) {
            // A zombie may still have threads, but has exited.
            _ if self.shows(pid) => self.process(pid).is_none(),
            Ok(held) => held.has_ended(),
            Err(error) => error == Errno::SRCH,
        }
    }
}

/// Returns the kernel's form of a pid.
pub(super) fn raw_pid(pid: Pid) -> Option<RawPid> {
    i32::try_from(pid.0).ok().and_then(RawPid::from_raw)
}

impl ProcessHandle {
    /// Opens the process that has this pid now. Nothing but a child that was not waited for is sure to be the one meant.
    pub fn open(pid: Pid) -> Result<Self, Errno> {
        let raw = raw_pid(pid).ok_or(Errno::SRCH)?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty())?;
        Ok(Self { pid, pidfd })
    }

    /// Returns what to poll for the exit of the process.
    pub fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.pidfd, PollFlags::IN)
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.pidfd, signal)?)
    }

    /// Waits for the process to exit. Returns false on timeout.
    pub fn ends_within(&self, limit: Duration) -> bool {
        self.ends_by(Instant::now() + limit)
    }

    /// The same until a deadline.
    pub fn ends_by(&self, until: Instant) -> bool {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(timeout) = Timespec::try_from(left) else {
                return false;
            };
            let mut watched = [self.poll_fd()];
            match poll(&mut watched, Some(&timeout)) {
                Ok(count) => return count > 0,
                // A signal to this process means nothing for the other one.
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// True if the process has exited.
    pub fn has_ended(&self) -> bool {
        self.ends_within(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_opened_by_pid_and_start_time() {
        let host = Host::at(Path::new("/"));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid(child.id());
        let started = host.process(pid).unwrap().started;
        assert!(
            host.open_process(pid, StartTime(started.0 + 1))
                .unwrap()
                .is_none(),
            "another process"
        );
        let held = host.open_process(pid, started).unwrap().unwrap();
        assert!(!held.has_ended());
        held.signal(Signal::TERM).unwrap();
        assert!(held.ends_within(Duration::from_secs(20)));
        // Not waited for yet, it is a zombie.
        assert!(host.has_ended(pid));
        assert!(!host.has_ended(Pid(std::process::id())));
        child.wait().unwrap();
        assert!(host.has_ended(pid));
        let gone = host.open_process(pid, started).unwrap();
        assert!(gone.is_none(), "it is gone");
    }
}
