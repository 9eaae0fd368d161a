use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid as RawPid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{Host, Pid, StartTime};

/// One certain process: whatever is done to it is never done to another one that is given its pid later.
#[derive(Debug)]
pub struct ProcessHandle {
    pidfd: OwnedFd,
}

impl Host {
    /// Takes hold of the process with that id that started then; `None` where it is gone.
    pub fn open_process(&self, pid: Pid, started: StartTime) -> Option<ProcessHandle> {
        let raw = i32::try_from(pid.0).ok().and_then(RawPid::from_raw)?;
        // Opened first and checked then: no other process can come in between.
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).ok()?;
        let process = self.process(pid)?;
        (process.started == started).then_some(ProcessHandle { pidfd })
    }

    /// The inode of this process's pid namespace: pids of another one mean nothing here. `None` where that is hidden.
    pub fn pid_namespace(&self) -> Option<u64> {
        let namespace = std::fs::metadata(self.root.join("proc/self/ns/pid")).ok()?;
        Some(namespace.ino())
    }

    /// Whether the process with that id has ended, or there is none; told also where `/proc` hides it.
    pub fn has_ended(&self, pid: Pid) -> bool {
        let raw = i32::try_from(pid.0).ok().and_then(RawPid::from_raw);
        let pidfd = raw.map(|raw| pidfd_open(raw, PidfdFlags::empty()));
        match pidfd {
            // A zombie that may still have threads has ended as well.
            _ if self.shows(pid) => self.process(pid).is_none(),
            Some(Ok(pidfd)) => ProcessHandle { pidfd }.has_ended(),
            Some(Err(error)) => error == Errno::SRCH,
            None => true,
        }
    }
}

impl ProcessHandle {
    /// Sends it a signal.
    ///
    /// # Errors
    /// The system's.
    pub fn signal(&self, signal: Signal) -> std::io::Result<()> {
        Ok(pidfd_send_signal(&self.pidfd, signal)?)
    }

    /// Waits for its end for at most so long; tells whether it has ended.
    pub fn ends_within(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(timeout) = Timespec::try_from(left) else {
                return false;
            };
            let mut watched = [PollFd::new(&self.pidfd, PollFlags::IN)];
            match poll(&mut watched, Some(&timeout)) {
                Ok(count) => return count > 0,
                // A signal that this process was sent says nothing about the other one.
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Whether it has ended.
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
    fn a_process_is_held_by_pid_and_start() {
        let host = Host::at(Path::new("/"));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid(child.id());
        let started = host.process(pid).unwrap().started;
        assert!(
            host.open_process(pid, StartTime(started.0 + 1)).is_none(),
            "another process"
        );
        let held = host.open_process(pid, started).unwrap();
        assert!(!held.has_ended());
        held.signal(Signal::TERM).unwrap();
        assert!(held.ends_within(Duration::from_secs(20)));
        // Not waited for yet, it is a zombie.
        assert!(host.has_ended(pid));
        assert!(!host.has_ended(Pid(std::process::id())));
        child.wait().unwrap();
        assert!(host.has_ended(pid));
        assert!(host.open_process(pid, started).is_none(), "it is gone");
    }
}
