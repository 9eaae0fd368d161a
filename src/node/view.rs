use std::path::{Path, PathBuf};
use std::time::Duration;

use super::answers::{Remembered, Seen, lasts};
use super::{Client, DaemonId, Life, Served, ServerProcess};
use crate::environment::MpsPrograms;
use crate::host::{Host, Pid, Process, ProcessTable, RunError, end_of};
use crate::mps::{Daemon, Glance, Liveness, MpsError, ServerSeen, ServerState, pending};
use crate::nvml::{Processes, Usage};
use crate::profile::Serve;

/// For how long somebody else's control session is waited for before the daemon is called busy, and
/// for how long a daemon may take to answer.
const PATIENCE: Duration = Duration::from_millis(1500);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// For how long a process whose lock is free may still be ending, before it is called an orphan.
const DYING: Duration = Duration::from_millis(50);

/// How long a daemon's process may outlive its socket when it ends.
const END_LIMIT: Duration = Duration::from_millis(500);

/// How old a server must be to be believed ready because NVML lists it, in 200 times what its start takes on an H200.
/// NVML lists it as soon as it has its context.
const PROVEN: Duration = Duration::from_secs(60);

/// For how long nothing may have been added to its log: it takes a second or so to get over a fault when its
/// clients have gone, and is in nobody's list of clients meanwhile.
const QUIET: Duration = Duration::from_secs(5);

/// How late the last line about a server that `up` has found ready may be written: its daemon writes that log.
const LOG_DELAY: Duration = Duration::from_secs(1);

/// How exactly a process's age is known: both it and the time since the machine was booted are told in hundredths of a
/// second.
const TICK: Duration = Duration::from_millis(10);

/// How much of a daemon's log is looked through for programs that wait: half a day of somebody who asks every
/// ten seconds.
const ENOUGH_LOG: u64 = 1 << 20;

/// What one daemon is seen by.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    /// Whether somebody is changing something.
    pub(super) is_under_way: bool,
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
    /// Whether it is also asked for what it gives to servers.
    pub(super) with_defaults: bool,
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
        let lock = match self.daemon(served).liveness() {
            // It has ended since.
            Liveness::Held(pid) if self.host.has_ended(pid) => Liveness::Dead,
            lock => lock,
        };
        let pid = match lock {
            Liveness::Held(pid) if self.host.process(pid).is_some() => pid,
            // Something lives there, and `/proc` or the directory hides it from the caller.
            Liveness::Held(_) | Liveness::HeldUnseen | Liveness::Hidden => {
                served.life = Life::Hidden;
                return None;
            }
            Liveness::Dead => {
                let lives_on = |id: DaemonId| {
                    let held = self.host.hold(id.pid, id.start_time);
                    // A process that ends lets go of its files first.
                    held.is_some_and(|held| !held.ends_within(DYING))
                };
                if recorded.is_some_and(lives_on) {
                    served.life = Life::Orphan;
                } else if self.is_under_way && record.daemon.is_none() && !record.finished {
                    served.life = Life::Starting;
                }
                return None;
            }
        };
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
    /// A fault lasts hardly longer than the clients that met it: a server that computes and has long had no
    /// clients serves. A server that NVML does not list yet is starting, and its daemon must be
    /// asked; so must one with clients, and one that somebody's program has just started or left.
    pub(super) fn tells(self, served: &mut Served, daemon: Pid, logs: Option<&Path>) -> bool {
        let Some(processes) = self.processes.filter(|_| served.record.finished) else {
            return false;
        };
        let is_running = |process: &Process| !process.is_stopped && !process.is_ending;
        if !processes.clients.is_empty() || !self.table.get(daemon).is_some_and(is_running) {
            return false;
        }
        if !self.daemon(served).has_socket() {
            return false;
        }
        let children: Vec<&Process> = self.table.children(daemon).collect();
        served.life = match children.as_slice() {
            [] if processes.compute.is_empty() => Life::NoServerYet,
            [only]
                if is_running(only)
                    && lists(&processes.compute, only.pid)
                    && is_proven(served, only, self.log_dir(daemon, logs.map(Path::to_owned))) =>
            {
                Life::Ready
            }
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
            .and_then(|process| Seen::of(served, process, &children, self.processes, log_dir))
            .filter(|_| served.record.finished);
        if let Some(known) = self
            .answer
            .filter(|known| seen.as_ref() == Some(&known.seen))
        {
            self.fill_in(served, &known.glance);
            return Some(known.clone());
        }
        let mut children: Vec<Pid> = children.iter().map(|child| child.pid).collect();
        let asked = self.daemon(served);
        let mut glance = if asked.has_socket() {
            asked.glance(&children, self.with_defaults, PATIENCE, ANSWER_LIMIT)
        } else {
            // It would answer its owner by another socket, and no program finds it.
            Err(MpsError::NoDaemon(
                served.run_dir.pipe_dir(&served.record.uuid),
            ))
        };
        let is_odd = |server: &ServerSeen| match server.state {
            None => true,
            // Its last client went between the two questions.
            Some(ServerState::Fault) => server.clients.is_empty(),
            Some(_) => false,
        };
        if let Ok(seen) = &glance
            && seen.servers.iter().any(is_odd)
        {
            // A server came up meanwhile, and may have clients already.
            children = seen.servers.iter().map(|server| server.pid).collect();
            glance = asked.glance(&children, self.with_defaults, PATIENCE, ANSWER_LIMIT);
        }
        match glance {
            Ok(mut glance) => {
                // Measured: a server that was killed is listed for a moment, with a fault.
                let ends = |pid: Pid| {
                    let process = self.host.process(pid);
                    process.is_some_and(|process| process.is_ending)
                };
                glance
                    .servers
                    .retain(|server| !self.host.has_ended(server.pid) && !ends(server.pid));
                self.fill_in(served, &glance);
                let seen = seen.filter(|_| lasts(&glance))?;
                return Some(Remembered { seen, glance });
            }
            Err(MpsError::Busy { .. }) => {
                served.life = Life::Busy;
                served.servers = children.iter().map(|&pid| self.server(pid)).collect();
            }
            Err(MpsError::NoDaemon(_)) => {
                let finished = served.record.finished;
                let limit = if finished { END_LIMIT } else { DYING };
                if self.is_gone(served, daemon, limit) {
                    served.life = Life::Dead;
                } else if !finished {
                    // It takes its lock before it listens.
                    served.life = Life::Starting;
                } else {
                    served.life = Life::NoAnswer;
                    served.problem = Some("no program reaches it by its socket".to_owned());
                }
            }
            // That says nothing about the daemon: it stays hidden.
            Err(error @ MpsError::Program(RunError::Start { .. })) => {
                served.problem = Some(error.to_string());
            }
            Err(error) => {
                served.life = Life::NoAnswer;
                served.problem = Some(error.to_string());
            }
        }
        None
    }

    /// Whether a daemon that nobody can reach has ended, or does.
    fn is_gone(self, served: &Served, daemon: Pid, limit: Duration) -> bool {
        let process = self.host.process(daemon);
        let held = process.and_then(|process| self.host.hold(daemon, process.started));
        self.daemon(served).liveness() == Liveness::Dead
            || held.is_none_or(|held| held.ends_within(limit))
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
        // A change of settings leaves the record unfinished for a moment, and its server serves meanwhile.
        served.life = if served.record.daemon.is_none() {
            Life::Starting
        } else if says(ServerState::Fault) {
            Life::Fault
        } else if says(ServerState::Active) {
            Life::Ready
        } else if glance.servers.is_empty() && served.record.finished {
            Life::NoServerYet
        } else {
            Life::Starting
        };
        served.is_known = glance.servers.iter().all(|server| server.state.is_some());
        served.answered.clone_from(&glance.defaults);
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

/// Whether a server that NVML lists and that has no clients is sure to be ready: `up` has found it so, or it has
/// been there for long, and nothing has happened since that it may be busy with still.
fn is_proven(served: &Served, only: &Process, log_dir: Option<PathBuf>) -> bool {
    let recorded = served.run_dir.recorded_at(&served.record.uuid);
    let recorded = recorded.and_then(|at| at.elapsed().ok());
    let Some(age) = only.age() else {
        return false;
    };
    if age < PROVEN && recorded.is_none_or(|recorded| age + TICK < recorded) {
        return false;
    }
    let log = log_dir.map(|log_dir| std::fs::metadata(log_dir.join("server.log")));
    let written = log.and_then(|meta| meta.ok()?.modified().ok()?.elapsed().ok());
    written.is_none_or(|written| {
        written > QUIET || recorded.is_some_and(|recorded| recorded < written + LOG_DELAY)
    })
}

fn lists(usages: &[Usage], pid: Pid) -> bool {
    usages.iter().any(|usage| usage.pid == pid.0)
}
