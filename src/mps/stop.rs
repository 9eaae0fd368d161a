use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::session::NO_DAEMON;
use super::{Daemon, Liveness, MpsError, ServerSeen, ServerState};
use crate::host::{Held, Host, Pid, RunError, StartTime, run};

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

impl Patience {
    /// Clients shall end at once: `quit -t` takes whole seconds. Before it, each is terminated, which the MPS guide
    /// has as the way to end clients without harm; they fail with CUDA error 810.
    pub const AT_ONCE: Self = Self::Force(1);
}

/// An idle daemon with a server takes 45 to 80 ms to end.
const QUIT_LIMIT: Duration = Duration::from_secs(15);

/// After the control program has returned, or has been refused.
const GONE_LIMIT: Duration = Duration::from_secs(1);

/// For how long a daemon is asked who its clients are that must end at once; one that does not answer is told to quit
/// without that.
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// How long it may take after SIGTERM: measured, it dies at once, and its server with it.
const SIGNAL_LIMIT: Duration = Duration::from_secs(5);

impl Daemon {
    /// Ends the daemon, and returns when its process is gone and its lock free.
    ///
    /// First it is asked to. One that does not end by that is ended by SIGTERM where nobody is to be spared: its
    /// clients were to end, or it has no server.
    ///
    /// # Errors
    /// [`MpsError::Failed`] with what still stands.
    pub fn stop(
        &self,
        host: &Host,
        daemon: (Pid, StartTime),
        patience: Patience,
    ) -> Result<(), MpsError> {
        let Some(held) = host.hold(daemon.0, daemon.1) else {
            return self.verify_lock_free();
        };
        if patience == Patience::AT_ONCE {
            self.terminate_clients(host, daemon.0);
        }
        let (said, limit) = match self.quit(&held, patience) {
            Quit::Ended => return self.verify_lock_free(),
            Quit::Failed(error) => return Err(error),
            Quit::Refused { said, limit } => (said, limit),
        };
        let servers = children(host, daemon.0);
        let mut failure = format!(
            "the control daemon {} has not ended within {} s{said}",
            daemon.0,
            limit.as_secs()
        );
        if patience == Patience::Idle && !servers.is_empty() {
            // Measured: the daemon goes on with a quit whose caller has gone.
            if said.is_empty() {
                failure.push_str(
                    ": a client has joined at the last moment; no other is admitted, and the daemon \
                     ends when that one does",
                );
            }
            return Err(self.failure(failure));
        }
        self.signal(&held, daemon.0)?;
        let left: Vec<String> = servers
            .into_iter()
            .filter(|(pid, started)| {
                host.hold(*pid, *started)
                    .is_some_and(|held| !held.ends_within(GONE_LIMIT))
            })
            .map(|(pid, _)| pid.to_string())
            .collect();
        if !left.is_empty() {
            return Err(self.failure(format!(
                "the control daemon {} did not end when asked to, and was ended; of its servers are left: pid {}",
                daemon.0,
                left.join(", ")
            )));
        }
        self.verify_lock_free()
    }

    /// Ends a daemon that no control session can reach any more. Its server and their clients'
    /// connections end with it.
    ///
    /// # Errors
    /// [`MpsError::Failed`] where it does not end.
    pub fn terminate(&self, host: &Host, daemon: (Pid, StartTime)) -> Result<(), MpsError> {
        match host.hold(daemon.0, daemon.1) {
            Some(held) => self.signal(&held, daemon.0),
            None => Ok(()),
        }
    }

    /// Asks it to quit, again and again while it is refused.
    fn quit(&self, held: &Held, patience: Patience) -> Quit {
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
                Err(error) => return Quit::Failed(error.into()),
            }
            // A refused session exits 0 without a word: only the process tells.
            if held.ends_within(GONE_LIMIT) {
                return Quit::Ended;
            }
            // Its socket has gone, and no other try finds one.
            if said.contains(NO_DAEMON) {
                break;
            }
        }
        let said = match said.trim() {
            "" => String::new(),
            said => format!(": {said}"),
        };
        Quit::Refused { said, limit }
    }

    /// Terminates every client, as far as that can be had: those that are left are ended by the quit that follows.
    fn terminate_clients(&self, host: &Host, daemon: Pid) {
        let servers: Vec<Pid> = children(host, daemon)
            .into_iter()
            .map(|(pid, _)| pid)
            .collect();
        let Ok(glance) = self.glance(&servers, false, ASK_LIMIT, ASK_LIMIT) else {
            return;
        };
        // In a fault their work has ended, and a server that waits for them to leave answers nothing (measured: for
        // more than 60 s).
        let can_answer = |server: &ServerSeen| server.state != Some(ServerState::Fault);
        for server in glance.servers.into_iter().filter(can_answer) {
            // 0 is one in a pid namespace that cannot be seen from here.
            for client in server.clients.into_iter().filter(|client| client.0 != 0) {
                let _ = self.terminate_client(server.pid, client);
            }
        }
    }

    /// SIGTERM, which it does not handle.
    fn signal(&self, held: &Held, pid: Pid) -> Result<(), MpsError> {
        let sent = held.signal(Signal::TERM);
        sent.map_err(|error| self.failure(format!("cannot end process {pid}: {error}")))?;
        // One that is stopped would receive it only when it goes on.
        let _ = held.signal(Signal::CONT);
        if held.ends_within(SIGNAL_LIMIT) {
            return Ok(());
        }
        Err(self.failure(format!("process {pid} does not end: it was sent SIGTERM")))
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

/// What came of asking a daemon to quit.
enum Quit {
    Ended,
    /// It goes on; what it said, and for how long it was tried.
    Refused {
        said: String,
        limit: Duration,
    },
    Failed(MpsError),
}

/// A daemon's servers.
fn children(host: &Host, daemon: Pid) -> Vec<(Pid, StartTime)> {
    let table = host.processes().unwrap_or_default();
    table
        .children(daemon)
        .map(|child| (child.pid, child.started))
        .collect()
}
