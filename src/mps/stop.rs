//! Stops a daemon and its servers, by a session or by signals, and ends the work of one client.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::log::worker_threads;
use super::processes::{MpsProcesses, is_server, open_processes};
use super::session::{BUSY_TIMEOUT, NO_DAEMON};
use super::{Daemon, LogFile, MpsError, ServerState};
use crate::host::{
    FileResult, Host, Interrupt, Pid, ProcessHandle, RunError, StartTime, Uid, caller,
    end_processes, join_words, kill_processes_after,
};

/// The treatment of the clients of a daemon that is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientPolicy {
    /// There are none: the daemon exits at once. If a client connects at that moment, the daemon exits when that client
    /// leaves.
    Idle,
    /// New clients are refused. Connected clients may go on for this number of seconds, then fail with CUDA error 806.
    Force(u32),
}

impl ClientPolicy {
    /// Ends clients within the shortest time that `quit -t` takes. Before that each client is terminated, the MPS
    /// guide's way to end clients without harm; they fail with CUDA error 810.
    pub const AT_ONCE: Self = Self::Force(1);

    /// Returns the control command that stops a daemon so, and the time that it may take.
    fn quit_command(self) -> (String, Duration) {
        match self {
            Self::Idle => ("quit\n".to_owned(), QUIT_TIMEOUT),
            Self::Force(seconds) => (
                format!("quit -t {seconds}\n"),
                FORCED_QUIT_TIMEOUT + Duration::from_secs(seconds.into()),
            ),
        }
    }
}

/// The way a daemon is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMethod {
    /// A control session, and signals if that fails and no client has to be spared.
    Session,
    /// Signals only: the daemon hangs, or no control session may be opened.
    Signals,
    /// SIGKILL to its servers. If the daemon answers then, it goes on; otherwise it is stopped by signals.
    Heal,
}

/// The time that an idle daemon may take to exit: with a server it takes 45 to 80 ms.
const QUIT_TIMEOUT: Duration = Duration::from_secs(15);

/// The time after which a `quit` is taken to wait for clients. Measured: an idle daemon exits within 85 ms.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(700);

/// The bytes of the end of its log in which the daemon has then said who keeps its server.
const CLOSE_LOG_BYTES: u64 = 4 << 10;

/// The time that `quit -t` may take beyond its argument. On an H200 it returns to the second.
const FORCED_QUIT_TIMEOUT: Duration = Duration::from_secs(3);

/// The time that a daemon may take to exit after the control program has returned or was refused.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// The time that a daemon may take to answer after its hung server was killed. On an H200 it answers at once.
const HEAL_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The time for terminating clients before the daemon is asked to quit.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(3);

impl Daemon {
    /// Stops the daemon and its servers, and waits for their processes to exit.
    ///
    /// With [`StopMethod::Session`] the daemon is first asked to quit. If it does not, it is stopped by signals, unless a
    /// client has to be spared.
    pub fn stop(
        &self,
        host: &Host,
        processes: &MpsProcesses,
        daemon: (Pid, StartTime),
        patience: ClientPolicy,
        means: StopMethod,
    ) -> Result<(), MpsError> {
        let servers = self.open_servers(host, processes, daemon.0)?;
        let Some(held) = host.open_process(daemon.0, daemon.1)? else {
            let servers = self.open_servers(host, &MpsProcesses::read(host)?, daemon.0)?;
            return self.check_all_ended(&kill_processes_after(&servers, Duration::ZERO));
        };
        if means == StopMethod::Heal
            && kill_processes_after(&servers, Duration::ZERO).is_empty()
            && self
                .run_commands(&[], HEAL_ANSWER_TIMEOUT, HEAL_ANSWER_TIMEOUT)
                .is_ok()
        {
            return Ok(());
        }
        if means != StopMethod::Session {
            return self.end_by_signals(host, processes, held, servers);
        }
        if patience == ClientPolicy::AT_ONCE {
            self.terminate_clients(&servers);
        }
        let (command, limit) = patience.quit_command();
        let said = match self.ask_to_quit(&held, &command, limit) {
            Ok(None) => return self.check_all_ended(&kill_processes_after(&servers, EXIT_TIMEOUT)),
            Ok(Some(said)) => said,
            Err(error) if patience == ClientPolicy::Idle => return Err(error),
            // No client has to be spared.
            Err(_) => String::new(),
        };
        // A server may have started since the processes were read.
        let servers = self.current_servers(host, processes, &held)?;
        if patience == ClientPolicy::Idle && !servers.is_empty() {
            let why = match (said.as_str(), self.program.queues_sessions) {
                // Measured: the daemon carries out a quit even after its caller has exited.
                ("", true) => {
                    ": a client connected in the last moment, or another control session is open; the quit may still \
                     take effect"
                }
                ("", false) => {
                    ": a client connected in the last moment; no other client is admitted, and the daemon exits when \
                     that client does"
                }
                (said, _) => said,
            };
            let mut error = self.error_with_logs(format!(
                "the control daemon {} did not exit within {} s{why}",
                held.pid,
                limit.as_secs()
            ));
            if let MpsError::Failed { is_quitting, .. } = &mut error {
                *is_quitting = said.is_empty();
            }
            return Err(error);
        }
        self.end_by_signals(host, processes, held, servers)
    }

    /// Asks the daemon to admit no new clients, and to exit when the last one has left. Returns how many threads of its server
    /// work for clients; 0 if it has exited. The daemon itself tries again after pauses that double, so that this is called
    /// again and again.
    ///
    /// Measured on H200s with 580: newcomers, and programs that wait for a server, get CUDA error 805, and so does a client that
    /// makes another context. A second `quit` is accepted, and makes the daemon try at once.
    pub fn close(&self, host: &Host, daemon: (Pid, StartTime)) -> Result<Option<u32>, MpsError> {
        let Some(held) = host.open_process(daemon.0, daemon.1)? else {
            return Ok(Some(0));
        };
        let begun = Instant::now();
        loop {
            match self.run_session("quit\n", CLOSE_TIMEOUT) {
                Err(RunError::Late { .. }) if held.wait_for_exit(Duration::ZERO) => {
                    return Ok(Some(0));
                }
                // It waits for clients.
                Err(RunError::Late { .. }) => {
                    let log = self.log_end(LogFile::Control, CLOSE_LOG_BYTES);
                    return Ok(worker_threads(&log));
                }
                Ok(_) if held.wait_for_exit(EXIT_TIMEOUT) => return Ok(Some(0)),
                Ok(_) if begun.elapsed() < BUSY_TIMEOUT => {
                    self.end_left_sessions(host, caller())?;
                }
                Ok(output) => {
                    let said = format!("{}{}", output.stdout, output.stderr);
                    return Err(self.error_with_logs(format!(
                        "the control daemon {} was asked to quit, but refused: {}",
                        held.pid,
                        said.trim()
                    )));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Kills a server without a daemon, or whose daemon waits for it in vain.
    pub fn kill_server(&self, host: &Host, server: (Pid, StartTime)) -> Result<(), MpsError> {
        let held = host.open_process(server.0, server.1)?;
        self.check_all_ended(&kill_processes_after(held.as_slice(), Duration::ZERO))
    }

    /// Returns the servers that a daemon has now, and those that outlived an earlier daemon of its directory, among these
    /// processes.
    fn open_servers(
        &self,
        host: &Host,
        processes: &MpsProcesses,
        daemon: Pid,
    ) -> FileResult<Vec<ProcessHandle>> {
        let family = host.process_family(daemon)?;
        let children = family.children(daemon).filter(|child| is_server(child));
        let others = self
            .servers_here(processes)
            .filter(|server| family.get(server.pid).is_none());
        open_processes(host, children.chain(others))
    }

    /// Returns the servers of a daemon that may have started servers, or ended, since the processes were read. The servers of a
    /// daemon that runs are its children. Only if it has ended, they are looked for on the whole node.
    fn current_servers(
        &self,
        host: &Host,
        processes: &MpsProcesses,
        daemon: &ProcessHandle,
    ) -> FileResult<Vec<ProcessHandle>> {
        let servers = self.open_servers(host, processes, daemon.pid)?;
        if daemon.has_ended() {
            return self.open_servers(host, &MpsProcesses::read(host)?, daemon.pid);
        }
        Ok(servers)
    }

    /// Ends the daemon, which does not handle SIGTERM, and then its remaining servers. A healthy server exits with its
    /// daemon.
    fn end_by_signals(
        &self,
        host: &Host,
        processes: &MpsProcesses,
        daemon: ProcessHandle,
        mut servers: Vec<ProcessHandle>,
    ) -> Result<(), MpsError> {
        let pid = daemon.pid;
        let is_suspended = suspend(host, &daemon);
        let (mut unended, now) = if is_suspended {
            let now = self.current_servers(host, processes, &daemon);
            // With SIGTERM and SIGCONT it might go on.
            (kill_processes_after(&[daemon], Duration::ZERO), now)
        } else {
            let unended = end_processes(&[daemon]);
            // It may have started another server until it ended.
            let processes = MpsProcesses::read(host);
            let now = processes.and_then(|processes| self.open_servers(host, &processes, pid));
            (unended, now)
        };
        let unread = now.map(|now| servers.extend(now)).err();
        unended.extend(kill_processes_after(&servers, EXIT_TIMEOUT));
        unended.sort_unstable();
        unended.dedup();
        self.check_all_ended(&unended)?;
        unread.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Returns an error if the kernel has not ended some processes.
    pub(super) fn check_all_ended(&self, unended: &[Pid]) -> Result<(), MpsError> {
        if unended.is_empty() {
            return Ok(());
        }
        let what = match unended {
            [one] => format!("pid {one} was sent SIGKILL but has not exited"),
            several => {
                let pids: Vec<String> = several.iter().map(Pid::to_string).collect();
                let pids = join_words(&pids, "and");
                format!("pids {pids} were sent SIGKILL but have not exited")
            }
        };
        Err(self.error_with_logs(what))
    }

    /// Asks the daemon to quit, and retries while that is refused. Returns the last words of the control program if it
    /// has not ended within the limit.
    fn ask_to_quit(
        &self,
        held: &ProcessHandle,
        command: &str,
        limit: Duration,
    ) -> Result<Option<String>, MpsError> {
        let start = Instant::now();
        let mut said = String::new();
        while start.elapsed() < limit {
            let remaining = limit.saturating_sub(start.elapsed());
            match self.run_session(command, remaining) {
                Ok(output) => said = format!("{}{}", output.stdout, output.stderr),
                // It still waits for a client.
                Err(RunError::Late { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            // A refused session exits with status 0 and no output: only the process shows the result.
            if held.wait_for_exit(EXIT_TIMEOUT) {
                return Ok(None);
            }
            // The socket has gone: a retry cannot find it.
            if said.contains(NO_DAEMON) {
                break;
            }
        }
        Ok(Some(match said.trim() {
            "" => String::new(),
            said => format!(": {said}"),
        }))
    }

    /// Terminates the clients that answer in time. The following quit ends the others.
    fn terminate_clients(&self, servers: &[ProcessHandle]) {
        let until = Instant::now() + TERMINATE_TIMEOUT;
        let servers: Vec<Pid> = servers.iter().map(|held| held.pid).collect();
        let Ok(status) = self.query_status(&servers, false, time_until(until), time_until(until))
        else {
            return;
        };
        for server in status.servers {
            // After a fault their work has ended, and the server answers nothing while it waits for them to exit
            // (measured: for more than 60 s).
            if server.state == Some(ServerState::Fault) {
                continue;
            }
            for client in server.clients.into_iter().flatten() {
                let remaining = time_until(until);
                if remaining.is_zero() {
                    return;
                }
                let _ = self.terminate_client_within(server.pid, client, remaining, remaining);
            }
        }
    }

    /// Ends a client's work on the GPU: from then on its CUDA calls fail with error 810. Its process and the other
    /// clients go on. Afterwards the process may be killed without harm to the server (MPS guide, "Troubleshooting").
    pub fn terminate_client(&self, server: Pid, client: Pid) -> Result<(), MpsError> {
        self.terminate_client_within(server, client, BUSY_TIMEOUT, SERVER_ANSWER_TIMEOUT)
    }

    /// The same with other limits.
    pub(super) fn terminate_client_within(
        &self,
        server: Pid,
        client: Pid,
        patience: Duration,
        limit: Duration,
    ) -> Result<(), MpsError> {
        let command = format!("terminate_client {server} {client}");
        let answer = self.run_commands(std::slice::from_ref(&command), patience, limit)?;
        // The exit status is always 0. The last line is CUDA's status; refusals are words.
        match answer.lines.last().map(|line| line.trim()) {
            Some("0") => Ok(()),
            _ => Err(self.error_with_logs(format!(
                "the control daemon was asked to {command:?} and answered {:?}",
                answer.lines.join("\n")
            ))),
        }
    }

    /// Waits for a client to leave its server. Returns false on timeout, which is shorter after an interrupt.
    pub fn wait_for_client_exit(
        &self,
        server: Pid,
        client: Pid,
        interrupt: &Interrupt,
    ) -> Result<bool, MpsError> {
        let start = Instant::now();
        let mut pause = FIRST_PAUSE;
        while self.has_client(server, client)? {
            let limit = if interrupt.is_interrupted() {
                INTERRUPTED_EXIT_TIMEOUT
            } else {
                CLIENT_EXIT_TIMEOUT
            };
            if start.elapsed() + pause > limit {
                return Ok(false);
            }
            // Only the server can wait for the exit of its client.
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(true)
    }

    /// True if a client is in a server's list.
    pub fn has_client(&self, server: Pid, client: Pid) -> Result<bool, MpsError> {
        let status = self.query_status(&[server], false, BUSY_TIMEOUT, SERVER_ANSWER_TIMEOUT)?;
        Ok(status
            .servers
            .iter()
            .any(|known| known.pid == server && known.clients.contains(&Some(client))))
    }
}

/// Suspends a process, which starts no other one until it is resumed or ended. Returns false if it goes on.
fn suspend(host: &Host, process: &ProcessHandle) -> bool {
    /// The kernel may have to finish an operation of the process first.
    const LIMIT: Duration = Duration::from_millis(100);
    let _ = process.send_signal(Signal::STOP);
    let until = Instant::now() + LIMIT;
    loop {
        match host.find_process(process.pid) {
            Some(found) if !found.is_stopped && !process.has_ended() => {}
            _ => return true,
        }
        if process.wait_for_exit(Duration::from_millis(1)) {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
    }
}

fn time_until(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

/// The time that a server may take: it first finishes or drops the client's outstanding GPU work.
const SERVER_ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The time that a terminated client may stay in its server's list. Measured: it leaves the list after 50 ms, with its
/// process.
const CLIENT_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// The same after the user has interrupted mig-mps.
const INTERRUPTED_EXIT_TIMEOUT: Duration = Duration::from_millis(300);

/// The pause between two queries of the list. It doubles up to the longest, because each query adds to the daemon's
/// log.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Returns the programs that wait for a server of their user: those whose last line in the daemon's log says that they
/// were pushed to the pending list.
///
/// ```text
/// [2026-11-20 17:46:21.325 Control  1369] NEW CLIENT 1404 from user 1235: Server is not ready, push client to pending list
/// ```
pub fn pending_clients(log: &str) -> Vec<(Pid, Uid)> {
    let mut pending: Vec<(Pid, Uid)> = Vec::new();
    for line in log.lines() {
        let Some((pid, user)) = parse_new_client(line) else {
            continue;
        };
        pending.retain(|(known, _)| *known != pid);
        // The daemon says 0 for a pid that it cannot see.
        if pid.0 != 0 && line.contains("pending list") {
            pending.push((pid, user));
        }
    }
    pending
}

fn parse_new_client(line: &str) -> Option<(Pid, Uid)> {
    let (_, client) = line.split_once("] NEW CLIENT ")?;
    let (pid, rest) = client.split_once(" from user ")?;
    let (user, _) = rest.split_once(':')?;
    Some((Pid(pid.parse().ok()?), Uid(user.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From a recording on an H200.
    const LOG: &str = "\
[2026-11-20 17:46:20.342 Control  1369] NEW CLIENT 1397 from user 1234: Server already exists
[2026-11-20 17:46:20.343 Control  1369] User did not send valid credentials
[2026-11-20 17:46:21.325 Control  1369] NEW CLIENT 1404 from user 1235: Server is not ready, push client to pending list
";

    #[test]
    fn who_was_pushed_to_the_pending_list_waits_until_admitted() {
        assert_eq!(pending_clients(LOG), [(Pid(1404), Uid(1235))]);
        let admitted = "[2026-11-20 17:46:27.916 Control  1369] NEW CLIENT 1404 from user 1235: Server already exists";
        assert_eq!(pending_clients(&format!("{LOG}{admitted}\n")), []);
    }

    #[test]
    fn a_line_that_is_cut_or_unknown_says_nothing() {
        assert_eq!(
            pending_clients(
                "5 from user 1235: Server is not ready, push client to pending list\n[x] NEW CLIENT\n"
            ),
            []
        );
    }
}
