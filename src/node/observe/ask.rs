//! Finds out the state of a daemon in a control session.

use std::path::Path;
use std::time::Duration;

use super::liveness::EXIT_GRACE;
use super::probe::Probe;
use super::remembered::{Remembered, Seen, lasts};
use crate::host::{Pid, RunError};
use crate::mps::{DaemonStatus, LogDir, MpsError, ServerState, ServerStatus};
use crate::node::client::Clients;
use crate::node::served::{DaemonState, Served};

/// Time to wait for another control session, before the daemon is called busy.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Time that a daemon may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Time that a daemon's process may outlive its socket when it exits.
const END_LIMIT: Duration = Duration::from_millis(500);

impl Probe<'_> {
    /// Asks the daemon, unless nothing has changed since its last answer; returns the answer if it may be used again.
    pub(super) fn ask(
        self,
        served: &mut Served,
        daemon: Pid,
        logs: Option<&LogDir>,
    ) -> Option<Remembered> {
        let process = self.table.get(daemon);
        if process.is_some_and(|process| process.is_stopped) {
            served.state = DaemonState::NoAnswer;
            return None;
        }
        if self.daemon(served).is_covered() {
            served.state = DaemonState::NoAnswer;
            served.problem =
                Some("somebody has mounted a file system on its pipe directory".to_owned());
            return None;
        }
        if !self.may_ask {
            self.fill_in_unasked(served, daemon, logs);
            return None;
        }
        self.programs?;
        let children = self.servers(daemon);
        // Taken before the session: what happens during it must change the next snapshot.
        let seen = process
            .and_then(|process| Seen::of(served, process, &children, self.processes, logs))
            .filter(|_| served.record.finished);
        if let Some(known) = self.reuse(served, daemon, seen.as_ref()) {
            return Some(known);
        }
        let mut children: Vec<Pid> = children.iter().map(|child| child.pid).collect();
        match self.query(served, &mut children, logs) {
            Ok(mut glance) => {
                self.drop_ended(&mut glance);
                self.fill_in(served, &glance);
                let seen = seen.filter(|_| lasts(&glance))?;
                Some(Remembered {
                    seen,
                    glance: Some(glance),
                })
            }
            Err(error) => {
                self.fill_in_failure(error, served, daemon, &children);
                // A hang lasts, too.
                let seen = seen.filter(|_| served.state == DaemonState::Hung)?;
                Some(Remembered { seen, glance: None })
            }
        }
    }

    /// Uses the last answer again if everything that can be seen without a session is unchanged.
    fn reuse(self, served: &mut Served, daemon: Pid, seen: Option<&Seen>) -> Option<Remembered> {
        let known = self.answer.filter(|known| seen == Some(&known.seen))?;
        match &known.glance {
            Some(glance) => self.fill_in(served, glance),
            // It may have recovered.
            None if self.is_busy(daemon) == Some(false) => return None,
            None => self.fill_in_hung(served, daemon),
        }
        Some(known.clone())
    }

    fn query(
        self,
        served: &Served,
        children: &mut Vec<Pid>,
        logs: Option<&LogDir>,
    ) -> Result<DaemonStatus, MpsError> {
        let daemon = self.daemon_with_logs(served, logs.map_or(Path::new(""), LogDir::path));
        if !daemon.has_socket() {
            // It would answer its owner by another socket, and no program finds it.
            let pipe_dir = served.run_dir.pipe_dir(&served.record.uuid);
            return Err(MpsError::NoDaemon(pipe_dir));
        }
        let query =
            |servers: &[Pid]| daemon.query(servers, self.with_defaults, PATIENCE, ANSWER_LIMIT);
        let glance = query(children)?;
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
        *children = glance.servers.iter().map(|server| server.pid).collect();
        query(children)
    }

    /// Removes servers that have ended. Measured: a killed server is listed for a moment, with a fault.
    fn drop_ended(self, glance: &mut DaemonStatus) {
        let is_ending = |pid: Pid| {
            let process = self.host.process(pid);
            process.is_some_and(|process| process.is_ending)
        };
        glance
            .servers
            .retain(|server| !self.host.has_ended(server.pid) && !is_ending(server.pid));
    }

    /// Fills in the state of a daemon that did not answer.
    fn fill_in_failure(self, error: MpsError, served: &mut Served, daemon: Pid, children: &[Pid]) {
        match error {
            // Sessions that are queued behind one that hangs are reported as busy, too.
            MpsError::Busy { .. }
                if self.program.queues_sessions
                    && self.is_busy(daemon) == Some(true)
                    && !self.starts_a_server(daemon) =>
            {
                self.fill_in_hung(served, daemon);
            }
            MpsError::Busy { .. } => {
                served.state = DaemonState::Busy;
                served.servers = children.iter().map(|&pid| self.server(pid)).collect();
            }
            MpsError::NoDaemon(_) => self.fill_in_unreachable(served, daemon),
            MpsError::Program(RunError::Late { .. }) => {
                if self.is_gone(daemon, EXIT_GRACE) {
                    served.state = DaemonState::Dead;
                } else if self.starts_a_server(daemon) {
                    served.state = DaemonState::Starting;
                } else if self.is_busy(daemon) == Some(false) {
                    served.state = DaemonState::NoAnswer;
                    served.problem = Some(format!(
                        "it did not answer within {} s",
                        ANSWER_LIMIT.as_secs()
                    ));
                } else {
                    self.fill_in_hung(served, daemon);
                }
            }
            // The control program did not start: the daemon stays hidden.
            error @ MpsError::Program(RunError::Start { .. }) => {
                served.problem = Some(error.to_string());
            }
            error => {
                served.state = DaemonState::NoAnswer;
                served.problem = Some(error.to_string());
            }
        }
    }

    fn fill_in_unreachable(self, served: &mut Served, daemon: Pid) {
        let finished = served.record.finished;
        let limit = if finished { END_LIMIT } else { EXIT_GRACE };
        served.state = if self.is_gone(daemon, limit) {
            DaemonState::Dead
        } else if !finished {
            // A daemon takes its lock before it listens.
            DaemonState::Starting
        } else if self.is_unreachable(served) {
            // Its directory was removed meanwhile.
            DaemonState::Orphan
        } else {
            served.problem = Some("no program reaches it by its socket".to_owned());
            DaemonState::NoAnswer
        };
    }

    /// Fills in the state of a daemon from its answers.
    fn fill_in(self, served: &mut Served, glance: &DaemonStatus) {
        let has_server = |state| {
            glance
                .servers
                .iter()
                .any(|server| server.state == Some(state))
        };
        // A change of settings leaves the record unfinished for a moment, during which the server goes on.
        served.state = if served.record.daemon.is_none() {
            DaemonState::Starting
        } else if has_server(ServerState::Fault) {
            DaemonState::Fault
        } else if has_server(ServerState::Active) {
            DaemonState::Ready
        } else if glance.servers.is_empty() && served.record.finished {
            DaemonState::NoServerYet
        } else {
            DaemonState::Starting
        };
        served.answered.clone_from(&glance.defaults);
        served.servers = glance
            .servers
            .iter()
            .map(|server| self.server(server.pid))
            .collect();
        let clients_of = |server: &ServerStatus| {
            let pid = Some(server.pid);
            let clients = server.clients.iter();
            clients
                .map(|&client| self.client(client, pid))
                .collect::<Vec<_>>()
        };
        let clients = glance.servers.iter().flat_map(clients_of).collect();
        served.clients = if glance.servers.iter().all(|server| server.state.is_some()) {
            Clients::Known(clients)
        } else {
            Clients::Partial(clients)
        };
    }
}
