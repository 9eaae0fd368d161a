use std::path::{Path, PathBuf};
use std::time::Duration;

use super::answers::{Remembered, Seen, lasts};
use super::{Client, DaemonId, Life, Served, ServerProcess};
use crate::environment::MpsPrograms;
use crate::host::{Host, Pid, Process, ProcessTable, end_of};
use crate::mps::{Daemon, Glance, Liveness, MpsError, ServerSeen, ServerState, pending};
use crate::nvml::{Processes, Usage};
use crate::profile::Serve;

/// For how long somebody else's control session is waited for before the daemon is called busy, and
/// for how long a daemon may take to answer.
const PATIENCE: Duration = Duration::from_millis(1500);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// How long a daemon's process may outlive its socket when it ends.
const END_LIMIT: Duration = Duration::from_millis(500);

/// How much of a daemon's log is looked through for programs that wait: half a day of somebody who asks every
/// ten seconds.
const ENOUGH_LOG: u64 = 1 << 20;

/// What one daemon is seen by.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    /// Whether the caller may open a control session with it.
    pub(super) may_ask: bool,
    pub(super) host: &'a Host,
    pub(super) table: &'a ProcessTable,
    pub(super) boot_id: &'a str,
    /// Who computes on the device; `None` where that is hidden.
    pub(super) processes: Option<&'a Processes>,
    pub(super) programs: Option<&'a MpsPrograms>,
    /// What it answered before, if that may do again.
    pub(super) answer: Option<&'a Remembered>,
}

impl View<'_> {
    /// Whether the recorded daemon lives: its process id if it can be looked at closer.
    pub(super) fn liveness(self, served: &mut Served) -> Option<Pid> {
        let record = &served.record;
        let recorded = record.daemon.filter(|_| record.boot_id == self.boot_id);
        let is_recorded = |id: DaemonId| {
            let process = self.host.process(id.pid);
            process.is_some_and(|process| process.started == id.start_time)
        };
        let pid = match self.daemon(served).liveness() {
            Liveness::Held(pid) => pid,
            Liveness::HeldUnseen | Liveness::Hidden => {
                served.life = Life::Hidden;
                return None;
            }
            Liveness::Dead => {
                if recorded.is_some_and(is_recorded) {
                    served.life = Life::Orphan;
                }
                return None;
            }
        };
        if self.host.process(pid).is_none() {
            // Something lives there, and `/proc` hides it from the caller.
            served.life = Life::Hidden;
            return None;
        }
        // A lock that somebody else holds on a dead daemon's file means nothing.
        let ours = match record.daemon {
            Some(id) => recorded.is_some() && id.pid == pid && is_recorded(id),
            None => record.boot_id == self.boot_id,
        };
        if ours {
            served.life = if record.finished {
                Life::Hidden
            } else {
                Life::Starting
            };
        }
        ours.then_some(pid)
    }

    /// Fills in what can be told without a control session; `false` where a question is left.
    ///
    /// A fault lasts only as long as the clients that met it: a server that computes and has no
    /// clients serves. A server that NVML does not list yet is starting, and its daemon must be
    /// asked; so must one with clients.
    pub(super) fn tells(self, served: &mut Served, daemon: Pid) -> bool {
        let Some(processes) = self.processes.filter(|_| served.record.finished) else {
            return false;
        };
        let is_running = |process: &Process| !process.is_stopped;
        if !processes.clients.is_empty() || !self.table.get(daemon).is_some_and(is_running) {
            return false;
        }
        if !self.daemon(served).has_socket() {
            return false;
        }
        let children: Vec<&Process> = self.table.children(daemon).collect();
        served.life = match children.as_slice() {
            [] if processes.compute.is_empty() => Life::NoServerYet,
            [only] if is_running(only) && lists(&processes.compute, only.pid) => Life::Ready,
            _ => return false,
        };
        served.is_known = true;
        served.servers = children
            .iter()
            .map(|child| self.server(child.pid))
            .collect();
        true
    }

    /// Asks the daemon, unless everything else is as it was when it answered before; returns what may do again.
    pub(super) fn ask(
        self,
        served: &mut Served,
        daemon: Pid,
        log_dir: Option<&Path>,
    ) -> Option<Remembered> {
        if self.programs.is_none() || !self.may_ask {
            return None;
        }
        let process = self.table.get(daemon);
        if process.is_some_and(|process| process.is_stopped) {
            served.life = Life::NoAnswer;
            return None;
        }
        let children: Vec<&Process> = self.table.children(daemon).collect();
        // Before it is asked: what happens meanwhile is news for the next look.
        let seen = process
            .and_then(|process| Seen::of(process, &children, self.processes, log_dir))
            .filter(|_| served.record.finished);
        if let Some(known) = self
            .answer
            .filter(|known| seen.as_ref() == Some(&known.seen))
        {
            self.fill_in(served, &known.glance);
            return Some(known.clone());
        }
        let mut children: Vec<Pid> = children.iter().map(|child| child.pid).collect();
        let mut glance = self
            .daemon(served)
            .glance(&children, PATIENCE, ANSWER_LIMIT);
        if let Ok(seen) = &glance
            && seen.servers.iter().any(|server| server.state.is_none())
        {
            // A server came up meanwhile, and may have clients already.
            children = seen.servers.iter().map(|server| server.pid).collect();
            glance = self
                .daemon(served)
                .glance(&children, PATIENCE, ANSWER_LIMIT);
        }
        match glance {
            Ok(glance) => {
                self.fill_in(served, &glance);
                let seen = seen.filter(|_| lasts(&glance))?;
                return Some(Remembered { seen, glance });
            }
            Err(MpsError::Busy { .. }) => {
                served.life = Life::Busy;
                served.servers = children.iter().map(|&pid| self.server(pid)).collect();
            }
            // One that starts has no socket yet, one that ends has none any more.
            Err(MpsError::NoDaemon(_)) if !served.record.finished => {}
            Err(MpsError::NoDaemon(_)) if process.is_none_or(|process| self.ends(process)) => {
                served.life = Life::Dead;
            }
            Err(MpsError::NoDaemon(_)) => {
                served.life = Life::NoAnswer;
                served.problem = Some("no program reaches it by its socket".to_owned());
            }
            Err(error) => {
                served.life = Life::NoAnswer;
                served.problem = Some(error.to_string());
            }
        }
        None
    }

    /// Whether a daemon that nobody reaches any more is about to end.
    fn ends(self, process: &Process) -> bool {
        let held = self.host.hold(process.pid, process.started);
        held.is_none_or(|held| held.ends_within(END_LIMIT))
    }

    /// Where the daemon writes its logs: what it was told, where that can be read, or where they belong.
    pub(super) fn log_dir(self, daemon: Pid, home: Option<PathBuf>) -> Option<PathBuf> {
        let process = self.table.get(daemon)?;
        let told = process.environment("CUDA_MPS_LOG_DIRECTORY");
        told.map(PathBuf::from).or(home)
    }

    /// Finds the programs that wait in `cuInit` because another user's are served: only the daemon's log tells
    /// of them. A server for everybody keeps nobody waiting.
    pub(super) fn find_waiting(self, served: &mut Served, log_dir: Option<&Path>) {
        let is_occupied = !served.clients.is_empty() || served.life == Life::Starting;
        let Some(log_dir) =
            log_dir.filter(|_| is_occupied && served.record.settings.serve != Some(Serve::All))
        else {
            return;
        };
        let mut log = end_of(&log_dir.join("control.log"), 0, ENOUGH_LOG);
        let missing = ENOUGH_LOG.saturating_sub(log.len() as u64);
        if missing > 0 {
            // What was put aside a moment ago tells of them too.
            log = end_of(&log_dir.join("control.log.1"), 0, missing) + &log;
        }
        let computes = |pid: Pid| {
            let processes = self.processes.into_iter();
            let mut usages =
                processes.flat_map(|processes| processes.clients.iter().chain(&processes.compute));
            usages.any(|usage| usage.pid == pid.0)
        };
        let waiting: Vec<Client> = pending(&log)
            .into_iter()
            .filter(|(pid, _)| !served.clients.iter().any(|client| client.pid == *pid))
            .filter(|(pid, _)| !computes(*pid))
            .map(|(pid, user)| (self.client(pid, None), user))
            // Another process may have its pid by now.
            .filter(|(client, user)| client.user == Some(*user))
            .map(|(client, _)| client)
            .collect();
        served.waiting = waiting;
    }

    fn fill_in(self, served: &mut Served, glance: &Glance) {
        let says = |state| {
            glance
                .servers
                .iter()
                .any(|server| server.state == Some(state))
        };
        if served.record.finished {
            served.life = if says(ServerState::Fault) {
                Life::Fault
            } else if says(ServerState::Active) {
                Life::Ready
            } else if glance.servers.is_empty() {
                Life::NoServerYet
            } else {
                Life::Starting
            };
        }
        served.is_known = glance.servers.iter().all(|server| server.state.is_some());
        served.percentage = Some(glance.percentage);
        served.servers = glance
            .servers
            .iter()
            .map(|server| self.server(server.pid))
            .collect();
        let of_server = |server: &ServerSeen| {
            let of = Some(server.pid);
            let clients = server.clients.iter();
            clients.map(|&pid| self.client(pid, of)).collect::<Vec<_>>()
        };
        served.clients = glance.servers.iter().flat_map(of_server).collect();
    }

    fn daemon(self, served: &Served) -> Daemon {
        let pipe = served.run_dir.pipe_dir(&served.record.uuid);
        Daemon::new(
            self.programs.cloned().unwrap_or_default(),
            pipe,
            PathBuf::new(),
        )
    }

    fn server(self, pid: Pid) -> ServerProcess {
        ServerProcess {
            pid,
            user: self.host.process(pid).and_then(|process| process.owner()),
        }
    }

    fn client(self, pid: Pid, server: Option<Pid>) -> Client {
        let process = self.host.process(pid);
        let usages = self
            .processes
            .into_iter()
            .flat_map(|processes| processes.clients.iter().chain(&processes.compute));
        Client {
            pid,
            started: process.as_ref().map(|process| process.started),
            server,
            user: process.as_ref().and_then(Process::owner),
            command: process.as_ref().map(Process::command),
            memory: usages
                .filter(|usage| usage.pid == pid.0)
                .find_map(|usage| usage.memory),
            age: process.as_ref().and_then(Process::age),
        }
    }
}

fn lists(usages: &[Usage], pid: Pid) -> bool {
    usages.iter().any(|usage| usage.pid == pid.0)
}
