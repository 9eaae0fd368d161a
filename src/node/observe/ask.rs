//! Finds out the state of a daemon in a control session.

use std::time::Duration;

use super::probe::{EXIT_GRACE, Probe, Remembered, Seen};
use crate::host::{Pid, RunError};
use crate::mps::{DaemonStatus, LogFile, MpsError, ServerState, ServerStatus};
use crate::node::{Client, Clients, DaemonState};
use crate::nvml::Usage;

/// Time to wait for another control session, before the daemon is called busy.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Time that a daemon may take to answer, and what each daemon that is asked adds to it: they share the CPUs.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
const LONGER_FOR_EACH: Duration = Duration::from_millis(25);

/// Time that a daemon's process may outlive its socket when it exits.
const END_LIMIT: Duration = Duration::from_millis(500);

/// Returns the time that a daemon may take to answer if so many are asked.
pub(super) fn answer_limit(daemons: u32) -> Duration {
    ANSWER_LIMIT + LONGER_FOR_EACH * daemons
}

impl Probe<'_> {
    /// Asks the daemon, unless nothing has changed since its last answer; returns the answer if it may be used again.
    pub(super) fn ask(&mut self) -> Option<Remembered> {
        if self.process().is_some_and(|process| process.is_stopped) {
            self.served.state = DaemonState::NoAnswer;
            return None;
        }
        if self.context.mps(self.served, None).is_covered() {
            self.fill_in_no_answer("somebody has mounted a file system on its pipe directory");
            return None;
        }
        if self.context.mps(self.served, None).is_closed_to_caller() {
            // It serves others, who alone can tell whether it would take a client.
            self.served.state = DaemonState::Hidden;
            self.fill_in_processes();
            return None;
        }
        if !self.may_ask {
            self.fill_in_unasked();
            return None;
        }
        self.context.programs?;
        // Taken before the session: what happens during it must change the next snapshot.
        let seen = self.see().filter(|_| self.served.record.finished);
        if let Some(known) = self.reuse(seen.as_ref()) {
            return Some(known);
        }
        let servers = self.servers();
        let mut servers: Vec<Pid> = servers.iter().map(|server| server.pid).collect();
        let answer = match self.query(&mut servers) {
            Err(MpsError::Program(RunError::Late { .. })) if self.may_be_slow() => {
                self.query(&mut servers)
            }
            answer => answer,
        };
        match answer {
            Ok(mut glance) => {
                self.drop_ended(&mut glance);
                self.mark_starting(&mut glance);
                self.fill_in(&glance);
                let seen = seen.filter(|_| lasts(&glance))?;
                let glance = Some(glance);
                Some(Remembered { seen, glance })
            }
            Err(error) => {
                self.fill_in_failure(error, &servers);
                // A hang lasts, too.
                let seen = seen.filter(|_| self.served.state == DaemonState::Hung)?;
                Some(Remembered { seen, glance: None })
            }
        }
    }

    /// Returns what can be seen without a session; `None` if the log cannot be read: a fault would stay unseen.
    fn see(&self) -> Option<Seen> {
        let pids = |usages: &[Usage]| {
            let mut pids: Vec<u32> = usages.iter().map(|usage| usage.pid).collect();
            pids.sort_unstable();
            pids
        };
        let processes = std::iter::once(self.process()?).chain(self.servers());
        Some(Seen {
            processes: processes
                .map(|process| (process.pid, process.started))
                .collect(),
            compute: self.processes.map(|processes| pids(&processes.compute)),
            clients: self.processes.map(|processes| pids(&processes.clients)),
            log: self.logs.as_ref()?.mark(LogFile::Server)?,
            recorded: self.served.run_dir.recorded_at(&self.served.record.uuid),
        })
    }

    /// Uses the last answer again if everything that can be seen without a session is unchanged.
    fn reuse(&mut self, seen: Option<&Seen>) -> Option<Remembered> {
        let known = self.answer.filter(|known| seen == Some(&known.seen))?;
        match &known.glance {
            Some(glance) => self.fill_in(glance),
            // It may have recovered.
            None if self.is_busy() == Some(false) => return None,
            None => self.fill_in_hung(),
        }
        Some(known.clone())
    }

    fn query(&self, servers: &mut Vec<Pid>) -> Result<DaemonStatus, MpsError> {
        let daemon = self.context.mps(self.served, self.logs.as_ref());
        if !daemon.has_socket() {
            // It would answer its owner by another socket, and no program finds it.
            let pipe_dir = self.served.run_dir.pipe_dir(&self.served.record.uuid);
            return Err(MpsError::NoDaemon(pipe_dir));
        }
        let query = |servers: &[Pid]| daemon.query(servers, true, PATIENCE, self.limit);
        let glance = query(servers)?;
        let is_odd = |server: &ServerStatus| match server.state {
            None => true,
            // Its last client left between the two commands.
            Some(ServerState::Fault) => server.clients.is_empty(),
            Some(_) => false,
        };
        if !glance.servers.iter().any(is_odd) {
            return Ok(glance);
        }
        // A server started meanwhile, and may have clients already.
        *servers = glance.servers.iter().map(|server| server.pid).collect();
        query(servers)
    }

    /// True if a daemon that did not answer in time has no sign of a hang: on a machine under load it may only have been
    /// slow.
    fn may_be_slow(&self) -> bool {
        let is_running = |pid| {
            let process = self.context.host.process(pid);
            process.is_some_and(|process| process.is_running)
        };
        !self.is_gone(Duration::ZERO)
            && !self.starts_a_server()
            && (self.is_busy() == Some(false)
                || is_running(self.daemon)
                || self.servers().iter().any(|server| is_running(server.pid)))
    }

    /// Removes servers that have ended. Measured: a killed server is listed for a moment, with a fault.
    fn drop_ended(&self, glance: &mut DaemonStatus) {
        let host = self.context.host;
        glance.servers.retain(|server| {
            let process = host.process(server.pid);
            !host.has_ended(server.pid) && !process.is_some_and(|process| process.is_ending)
        });
    }

    /// Marks servers that are not ready yet. A control program without `get_server_status` lists a server as soon as its
    /// process exists.
    fn mark_starting(&self, glance: &mut DaemonStatus) {
        if self.context.program.has_server_status {
            return;
        }
        for server in &mut glance.servers {
            let process = self.context.host.process(server.pid);
            let starts = process.is_some_and(|process| self.is_starting(&process));
            if server.state == Some(ServerState::Active) && starts {
                server.state = Some(ServerState::Initializing);
            }
        }
    }

    fn fill_in_no_answer(&mut self, problem: impl Into<String>) {
        self.served.state = DaemonState::NoAnswer;
        self.served.problem = Some(problem.into());
    }

    /// Fills in the state of a daemon that did not answer.
    fn fill_in_failure(&mut self, error: MpsError, servers: &[Pid]) {
        match error {
            // Sessions that are queued behind one that hangs are reported as busy, too.
            MpsError::Busy { .. }
                if self.context.program.queues_sessions
                    && self.is_busy() == Some(true)
                    && !self.starts_a_server() =>
            {
                self.fill_in_hung();
            }
            MpsError::Busy { .. } => {
                self.served.state = DaemonState::Busy;
                self.fill_in_servers(servers.iter().copied());
            }
            MpsError::NoDaemon(_) => self.fill_in_unreachable(),
            MpsError::Program(RunError::Late { .. }) => {
                if self.is_gone(EXIT_GRACE) {
                    self.served.state = DaemonState::Dead;
                } else if self.starts_a_server() {
                    self.served.state = DaemonState::Starting;
                    self.fill_in_processes();
                } else if self.is_busy() == Some(false) {
                    let limit = self.limit.as_secs();
                    self.fill_in_no_answer(format!("it did not answer within {limit} s"));
                } else {
                    self.fill_in_hung();
                }
            }
            // The control program did not start: the daemon stays hidden.
            error @ MpsError::Program(RunError::Start { .. }) => {
                self.served.problem = Some(error.to_string());
            }
            error => self.fill_in_no_answer(error.to_string()),
        }
    }

    fn fill_in_unreachable(&mut self) {
        let finished = self.served.record.finished;
        let limit = if finished { END_LIMIT } else { EXIT_GRACE };
        if self.is_gone(limit) {
            self.served.state = DaemonState::Dead;
        } else if !finished {
            // A daemon takes its lock before it listens.
            self.served.state = DaemonState::Starting;
        } else if self.context.is_unreachable(self.served) {
            // Its directory was removed meanwhile.
            self.served.state = DaemonState::Orphan;
        } else {
            self.fill_in_no_answer("no program reaches it by its socket");
        }
    }

    /// Fills in the state of a daemon from its answers.
    fn fill_in(&mut self, glance: &DaemonStatus) {
        let servers = &glance.servers;
        let has_server = |state| servers.iter().any(|server| server.state == Some(state));
        let record = &self.served.record;
        // A change of settings leaves the record unfinished for a moment, during which the server goes on.
        self.served.state = if record.daemon.is_none() {
            DaemonState::Starting
        } else if has_server(ServerState::Fault) {
            DaemonState::Fault
        } else if has_server(ServerState::Active) {
            DaemonState::Ready
        } else if servers.is_empty() && record.finished {
            DaemonState::NoServerYet
        } else if !servers.is_empty() && servers.iter().all(|server| self.is_overdue(server.pid)) {
            self.served.problem = Some("its server does not become ready".to_owned());
            DaemonState::Hung
        } else {
            DaemonState::Starting
        };
        self.served.answered.clone_from(&glance.defaults);
        self.fill_in_servers(servers.iter().map(|server| server.pid));
        let mut clients: Vec<Client> = Vec::new();
        for server in servers {
            let pids = server.clients.iter();
            clients.extend(pids.map(|&pid| self.client(pid, Some(server.pid))));
        }
        self.served.clients = if servers.iter().all(|server| server.state.is_some()) {
            Clients::Known(clients)
        } else {
            Clients::Partial(clients)
        };
    }
}

/// True if an answer stays valid until something else changes. A server that starts gives no sign when it is ready.
fn lasts(glance: &DaemonStatus) -> bool {
    let lasting = [Some(ServerState::Active), Some(ServerState::Fault)];
    let mut servers = glance.servers.iter();
    servers.all(|server| lasting.contains(&server.state))
}
