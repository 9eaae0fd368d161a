//! Stops a daemon and its servers, by a session or by signals.

use std::io;
use std::time::{Duration, Instant};

use super::mps_program::is_server;
use super::processes::{end_all, kill_all_after, list_pids, open_all, serves_in};
use super::session::NO_DAEMON;
use super::{Daemon, MpsError, ServerState, ServerStatus};
use crate::host::{Host, Pid, Process, ProcessHandle, RunError, StartTime};

/// The treatment of the clients of a daemon that is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// There are none: the daemon exits at once. If a client connects at that moment, the daemon exits when that client
    /// leaves.
    Idle,
    /// New clients are refused. Connected clients may go on for this number of seconds, then fail with CUDA error 806.
    Force(u32),
}

impl Patience {
    /// Ends clients within the shortest time that `quit -t` takes. Before that each client is terminated, the MPS
    /// guide's way to end clients without harm; they fail with CUDA error 810.
    pub const AT_ONCE: Self = Self::Force(1);

    /// Returns the control command that stops a daemon so, and the time that it may take.
    fn quit(self) -> (String, Duration) {
        match self {
            Self::Idle => ("quit\n".to_owned(), QUIT_LIMIT),
            Self::Force(seconds) => (
                format!("quit -t {seconds}\n"),
                FORCED_QUIT_LIMIT + Duration::from_secs(seconds.into()),
            ),
        }
    }
}

/// The way a daemon is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// A control session, and signals if that fails and no client has to be spared.
    Session,
    /// Signals only: the daemon hangs, or no control session may be opened.
    Signals,
    /// SIGKILL to its servers. If the daemon answers then, it goes on; otherwise it is stopped by signals.
    Heal,
}

/// The time that an idle daemon may take to exit: with a server it takes 45 to 80 ms.
const QUIT_LIMIT: Duration = Duration::from_secs(15);

/// The time that `quit -t` may take beyond its argument. On an H200 it returns to the second.
const FORCED_QUIT_LIMIT: Duration = Duration::from_secs(3);

/// The time that a daemon may take to exit after the control program has returned or was refused.
const EXIT_LIMIT: Duration = Duration::from_secs(1);

/// The time that a daemon may take to answer after its hung server was killed. On an H200 it answers at once.
const HEAL_LIMIT: Duration = Duration::from_secs(2);

/// The time for terminating clients before the daemon is asked to quit.
const TERMINATE_LIMIT: Duration = Duration::from_secs(3);

impl Daemon {
    /// Stops the daemon and its servers, and waits for their processes to exit.
    ///
    /// With [`Means::Session`] the daemon is first asked to quit. If it does not, it is stopped by signals, unless a
    /// client has to be spared.
    pub fn stop(
        &self,
        host: &Host,
        daemon: (Pid, StartTime),
        patience: Patience,
        means: Means,
    ) -> Result<(), MpsError> {
        // Includes servers that outlived an earlier daemon.
        let servers = self.servers(host, daemon.0)?;
        let Some(held) = host.open_process(daemon.0, daemon.1)? else {
            return self.ended(&kill_all_after(&servers, Duration::ZERO));
        };
        match means {
            Means::Session => {}
            Means::Signals => return self.end_by_signals(host, held, servers),
            Means::Heal => {
                let left = kill_all_after(&servers, Duration::ZERO);
                if left.is_empty() && self.session(&[], HEAL_LIMIT, HEAL_LIMIT).is_ok() {
                    return Ok(());
                }
                return self.end_by_signals(host, held, servers);
            }
        }
        if patience == Patience::AT_ONCE {
            self.terminate_clients(&servers);
        }
        let (command, limit) = patience.quit();
        let asked = self.wait_for_user(limit, |limit| self.quit(&held, &command, limit));
        let (said, limit) = match asked {
            Ok((None, _)) => return self.ended(&kill_all_after(&servers, EXIT_LIMIT)),
            Ok((Some(said), limit)) => (said, limit),
            Err(error) if patience == Patience::Idle => return Err(error),
            // No client has to be spared.
            Err(_) => (String::new(), limit),
        };
        let servers = self.servers(host, daemon.0)?;
        if patience == Patience::Idle && !servers.is_empty() {
            let why = match (said.as_str(), self.program.queues_sessions) {
                // Measured: the daemon carries out a quit even after its caller has exited.
                ("", true) => {
                    ": a client has joined at the last moment, or another control session is open; the quit may still \
                     be carried out"
                }
                ("", false) => {
                    ": a client has joined at the last moment; no other is admitted, and the daemon \
                     ends when that one does"
                }
                (said, _) => said,
            };
            return Err(self.failure(format!(
                "the control daemon {} has not ended within {} s{why}",
                held.pid,
                limit.as_secs()
            )));
        }
        self.end_by_signals(host, held, servers)
    }

    /// Kills a server without a daemon, or whose daemon waits for it in vain.
    pub fn kill_server(&self, host: &Host, server: (Pid, StartTime)) -> Result<(), MpsError> {
        let held = host.open_process(server.0, server.1)?;
        self.ended(&kill_all_after(held.as_slice(), Duration::ZERO))
    }

    /// Returns the servers of a daemon, and those in its directory without a daemon.
    fn servers(&self, host: &Host, daemon: Pid) -> io::Result<Vec<ProcessHandle>> {
        let table = host.processes()?;
        let is_of_daemon = |server: &&Process| {
            is_server(server) && (server.parent == daemon || serves_in(server, &self.pipe))
        };
        open_all(host, table.iter().filter(is_of_daemon))
    }

    /// Stops the daemon, which does not handle SIGTERM, and then its remaining servers. A healthy server exits with its
    /// daemon.
    fn end_by_signals(
        &self,
        host: &Host,
        daemon: ProcessHandle,
        mut servers: Vec<ProcessHandle>,
    ) -> Result<(), MpsError> {
        let pid = daemon.pid;
        let mut left = end_all(&[daemon]);
        // The daemon may have started another one until it ended.
        let now = self.servers(host, pid);
        let unread = now.map(|now| servers.extend(now)).err();
        left.extend(kill_all_after(&servers, EXIT_LIMIT));
        left.sort_unstable();
        left.dedup();
        self.ended(&left)?;
        unread.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Returns an error if the kernel has not ended some processes.
    pub(super) fn ended(&self, left: &[Pid]) -> Result<(), MpsError> {
        if left.is_empty() {
            return Ok(());
        }
        Err(self.failure(format!(
            "{} was sent SIGKILL and has not ended: the kernel cannot end it now",
            list_pids(left)
        )))
    }

    /// Asks the daemon to quit, and retries while that is refused. Returns what the control program said last if the daemon
    /// still runs after the limit, and that limit.
    fn quit(
        &self,
        held: &ProcessHandle,
        command: &str,
        limit: Duration,
    ) -> Result<(Option<String>, Duration), MpsError> {
        let start = Instant::now();
        let mut said = String::new();
        while start.elapsed() < limit {
            let left = limit.saturating_sub(start.elapsed());
            match self.run(&self.session_command()?, command, left) {
                Ok(output) => said = format!("{}{}", output.stdout, output.stderr),
                // It still waits for a client.
                Err(RunError::Late { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            // A refused session exits with status 0 and no output: only the process shows the result.
            if held.ends_within(EXIT_LIMIT) {
                return Ok((None, limit));
            }
            // The socket has gone: a retry cannot find it.
            if said.contains(NO_DAEMON) {
                break;
            }
        }
        let said = match said.trim() {
            "" => String::new(),
            said => format!(": {said}"),
        };
        Ok((Some(said), limit))
    }

    /// Terminates the clients that answer in time. The following quit ends the others.
    fn terminate_clients(&self, servers: &[ProcessHandle]) {
        let until = Instant::now() + TERMINATE_LIMIT;
        let left = || until.saturating_duration_since(Instant::now());
        let servers: Vec<Pid> = servers.iter().map(|held| held.pid).collect();
        let Ok(status) = self.query(&servers, false, left(), left()) else {
            return;
        };
        // After a fault their work has ended, and the server answers nothing while it waits for them to exit (measured:
        // for more than 60 s).
        let can_answer = |server: &ServerStatus| server.state != Some(ServerState::Fault);
        for server in status.servers.into_iter().filter(can_answer) {
            for client in server.clients.into_iter().flatten() {
                if left().is_zero() {
                    return;
                }
                let _ = self.terminate_client_within(server.pid, client, left(), left());
            }
        }
    }
}
