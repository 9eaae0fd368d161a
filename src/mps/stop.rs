use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid as RawPid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{Daemon, Liveness, MpsError};
use crate::host::{Host, Pid, RunError, StartTime, run};

/// What happens to the clients of a daemon that is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// There are none: it ends at once. Should one join at that very moment, the daemon ends when
    /// that client leaves.
    Idle,
    /// New ones are refused; those that are there may go on for so many seconds, then they fail with
    /// CUDA error 806.
    Force(u32),
}

/// An idle daemon with a server takes 45 to 80 ms to end.
const QUIT_LIMIT: Duration = Duration::from_secs(15);

/// After the control program has returned, or has been refused.
const GONE_LIMIT: Duration = Duration::from_secs(1);

impl Daemon {
    /// Ends the daemon, and returns when its process is gone and its lock free.
    ///
    /// # Errors
    /// [`MpsError::Failed`] with what still stands.
    pub fn stop(
        &self,
        host: &Host,
        daemon: (Pid, StartTime),
        patience: Patience,
    ) -> Result<(), MpsError> {
        let (quit, limit) = match patience {
            Patience::Idle => ("quit\n".to_owned(), QUIT_LIMIT),
            Patience::Force(seconds) => (
                format!("quit -t {seconds}\n"),
                QUIT_LIMIT + Duration::from_secs(seconds.into()),
            ),
        };
        let begun = Instant::now();
        let mut said = String::new();
        while begun.elapsed() < limit {
            let left = limit.saturating_sub(begun.elapsed());
            match run(&mut self.control(), &quit, left) {
                Ok(output) => said = format!("{}{}", output.stdout, output.stderr),
                // It is still waiting for a client: looked at below.
                Err(RunError::Late { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            // A refused session exits 0 without a word: only the process tells.
            if gone(host, daemon, GONE_LIMIT) {
                return self.verify_lock_free();
            }
        }
        let said = match (said.trim(), patience) {
            ("", Patience::Force(_)) => String::new(),
            // Measured: the daemon goes on with a quit whose caller has gone.
            ("", Patience::Idle) => {
                ": a client has joined at the last moment; no other is admitted, and the daemon ends \
                 when that one does"
                    .to_owned()
            }
            (said, _) => format!(": {said}"),
        };
        Err(self.failure(format!(
            "the control daemon {} has not ended within {} s{said}",
            daemon.0,
            limit.as_secs()
        )))
    }

    /// Ends a daemon that no control session can reach any more. Its server and their clients'
    /// connections end with it.
    ///
    /// # Errors
    /// [`MpsError::Failed`] where it does not end.
    pub fn terminate(&self, host: &Host, daemon: (Pid, StartTime)) -> Result<(), MpsError> {
        let (pid, started) = daemon;
        let raw = i32::try_from(pid.0).ok().and_then(RawPid::from_raw);
        // Opened first, checked then, signalled last: no other process can come in between.
        if let Some(Ok(pidfd)) = raw.map(|raw| pidfd_open(raw, PidfdFlags::empty()))
            && host
                .process(pid)
                .is_some_and(|process| process.started == started)
        {
            let sent = pidfd_send_signal(&pidfd, Signal::TERM);
            sent.map_err(|error| self.failure(format!("cannot end process {pid}: {error}")))?;
        }
        if gone(host, daemon, QUIT_LIMIT) {
            return Ok(());
        }
        Err(self.failure(format!("process {pid} does not end")))
    }

    fn verify_lock_free(&self) -> Result<(), MpsError> {
        match self.liveness() {
            Liveness::Dead => Ok(()),
            still => Err(self.failure(format!(
                "the control daemon has ended, but the lock in {} is held: {still:?}",
                self.pipe.display()
            ))),
        }
    }
}

/// Waits until a process is gone: by its pidfd, opened before its start time is checked, so that
/// another process given the same pid is never waited for.
fn gone(host: &Host, (pid, started): (Pid, StartTime), limit: Duration) -> bool {
    let alive = || {
        host.process(pid)
            .is_some_and(|process| process.started == started)
    };
    let raw = i32::try_from(pid.0).ok().and_then(RawPid::from_raw);
    let Some(Ok(pidfd)) = raw.map(|raw| pidfd_open(raw, PidfdFlags::empty())) else {
        return !alive();
    };
    if !alive() {
        return true;
    }
    let Ok(timeout) = Timespec::try_from(limit) else {
        return false;
    };
    let mut watched = [PollFd::new(&pidfd, PollFlags::IN)];
    let ended = poll(&mut watched, Some(&timeout));
    matches!(ended, Ok(1..)) || !alive()
}
