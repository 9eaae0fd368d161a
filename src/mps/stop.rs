use std::time::{Duration, Instant};

use super::processes::{end_all, kill_all_after, serves_in};
use super::program::MpsProgram;
use super::session::NO_DAEMON;
use super::{Daemon, MpsError, ServerSeen, ServerState};
use crate::host::{Held, Host, Pid, RunError, StartTime};

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
    /// Ends clients at once: `quit -t` takes whole seconds. Before it, each is terminated, which the MPS guide
    /// has as the way to end clients without harm; they fail with CUDA error 810.
    pub const AT_ONCE: Self = Self::Force(1);
}

/// How a daemon is made to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// By a control session, and by signals if that fails and nobody is to be spared.
    Session,
    /// By signals alone: it hangs, or a control session is not to be opened with it.
    Signals,
    /// Its servers by SIGKILL. If it answers then, it has not hung by itself and goes on; if not, it is ended by
    /// signals.
    Heal,
}

/// How long an idle daemon may take to end: with a server it takes 45 to 80 ms.
const QUIT_LIMIT: Duration = Duration::from_secs(15);

/// How much longer than it was told a `quit -t` may take. On an H200 it returns to the second.
const FORCED_QUIT_LIMIT: Duration = Duration::from_secs(3);

/// How long a daemon may take to go after the control program has returned, or has been refused.
const GONE_LIMIT: Duration = Duration::from_secs(1);

/// How long a daemon may take to answer when its hung server has been killed. On an H200 it does so at once.
const HEAL_LIMIT: Duration = Duration::from_secs(2);

/// How long terminating the clients may take before the daemon is asked to quit without it.
const TERMINATE_LIMIT: Duration = Duration::from_secs(3);

impl Daemon {
    /// Ends the daemon and its servers, and returns when their processes are gone.
    ///
    /// First it is asked to. A daemon that does not end by that is ended by signals if nobody is to be spared: its
    /// clients were to end, or it has no server.
    pub fn stop(
        &self,
        host: &Host,
        daemon: (Pid, StartTime),
        patience: Patience,
        means: Means,
    ) -> Result<(), MpsError> {
        // Also those that outlived an earlier daemon.
        let servers = self.servers(host, daemon.0);
        let Some(held) = host.hold(daemon.0, daemon.1) else {
            return self.ended(&kill_all_after(&servers, Duration::ZERO));
        };
        match means {
            Means::Session => {}
            Means::Signals => return self.end_by_signals(daemon.0, held, &servers),
            Means::Heal => {
                let left = kill_all_after(&servers, Duration::ZERO);
                if left.is_empty() && self.session(&[], HEAL_LIMIT, HEAL_LIMIT).is_ok() {
                    return Ok(());
                }
                return self.end_by_signals(daemon.0, held, &servers);
            }
        }
        if patience == Patience::AT_ONCE {
            self.terminate_clients(&servers);
        }
        let (said, limit) = match self.quit(&held, patience) {
            Quit::Ended => return self.ended(&kill_all_after(&servers, GONE_LIMIT)),
            Quit::Failed(error) if patience == Patience::Idle => return Err(error),
            Quit::Failed(error) => (format!(": {error}"), Duration::ZERO),
            Quit::Refused { said, limit } => (said, limit),
        };
        let servers = self.servers(host, daemon.0);
        if patience == Patience::Idle && !servers.is_empty() {
            let mut failure = format!(
                "the control daemon {} has not ended within {} s{said}",
                daemon.0,
                limit.as_secs()
            );
            // Measured: the daemon goes on with a quit whose caller has gone.
            if said.is_empty() && self.program.queues_sessions {
                failure.push_str(
                    ": a client has joined at the last moment, or another control session is open; the quit may still \
                     be carried out",
                );
            } else if said.is_empty() {
                failure.push_str(
                    ": a client has joined at the last moment; no other is admitted, and the daemon \
                     ends when that one does",
                );
            }
            return Err(self.failure(failure));
        }
        self.end_by_signals(daemon.0, held, &servers)
    }

    /// Ends servers that no daemon has any more, or whose daemon waits for them in vain.
    pub fn kill_servers(&self, host: &Host, servers: &[(Pid, StartTime)]) -> Result<(), MpsError> {
        let held = servers
            .iter()
            .filter_map(|&(pid, started)| Some((pid, host.hold(pid, started)?)));
        self.ended(&kill_all_after(&held.collect::<Vec<_>>(), Duration::ZERO))
    }

    /// The servers of a daemon, and those that serve in its directory without one.
    fn servers(&self, host: &Host, daemon: Pid) -> Vec<(Pid, Held)> {
        let table = host.processes().unwrap_or_default();
        let servers = table.iter().filter(|process| {
            MpsProgram::of(process) == Some(MpsProgram::Server)
                && (process.parent == daemon || serves_in(process, &self.pipe))
        });
        servers
            .filter_map(|server| Some((server.pid, host.hold(server.pid, server.started)?)))
            .collect()
    }

    /// Ends the daemon, which does not handle SIGTERM, and then what is left of its servers. A healthy server dies with
    /// its daemon.
    fn end_by_signals(
        &self,
        daemon: Pid,
        held: Held,
        servers: &[(Pid, Held)],
    ) -> Result<(), MpsError> {
        let mut left = end_all(&[(daemon, held)]);
        left.extend(kill_all_after(servers, GONE_LIMIT));
        self.ended(&left)
    }

    /// An error if the kernel has not ended some processes.
    pub(super) fn ended(&self, left: &[Pid]) -> Result<(), MpsError> {
        if left.is_empty() {
            return Ok(());
        }
        let pids: Vec<String> = left.iter().map(|pid| format!("pid {pid}")).collect();
        Err(self.failure(format!(
            "{} was sent SIGKILL and has not ended: the kernel cannot end it now",
            pids.join(", ")
        )))
    }

    /// Asks it to quit, again and again while it is refused.
    fn quit(&self, held: &Held, patience: Patience) -> Quit {
        let (quit, limit) = match patience {
            Patience::Idle => ("quit\n".to_owned(), QUIT_LIMIT),
            Patience::Force(seconds) => (
                format!("quit -t {seconds}\n"),
                FORCED_QUIT_LIMIT + Duration::from_secs(seconds.into()),
            ),
        };
        let begun = Instant::now();
        let mut said = String::new();
        while begun.elapsed() < limit {
            let left = limit.saturating_sub(begun.elapsed());
            match self.run(self.control(), &quit, left) {
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

    /// Terminates every client that can be reached in time: those that are left are ended by the quit that follows.
    fn terminate_clients(&self, servers: &[(Pid, Held)]) {
        let until = Instant::now() + TERMINATE_LIMIT;
        let left = || until.saturating_duration_since(Instant::now());
        let servers: Vec<Pid> = servers.iter().map(|(pid, _)| *pid).collect();
        let Ok(glance) = self.glance(&servers, false, left(), left()) else {
            return;
        };
        // In a fault their work has ended, and a server that waits for them to leave answers nothing (measured: for
        // more than 60 s).
        let can_answer = |server: &ServerSeen| server.state != Some(ServerState::Fault);
        for server in glance.servers.into_iter().filter(can_answer) {
            // 0 is one in a pid namespace that cannot be seen from here.
            for client in server.clients.into_iter().filter(|client| client.0 != 0) {
                if left().is_zero() {
                    return;
                }
                let _ = self.terminate_client_within(server.pid, client, left(), left());
            }
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
