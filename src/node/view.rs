use std::path::{Path, PathBuf};
use std::time::Duration;

use super::answers::{Remembered, Seen, lasts};
use super::{Client, Life, Served, ServerProcess};
use crate::host::MpsPrograms;
use crate::host::{Host, Pid, Process, ProcessTable, RunError, Uid, caller};
use crate::mps::{
    ControlProgram, Daemon, DaemonStatus, LockHolder, LogDir, LogFile, MpsError, ServerState,
    ServerStatus, is_daemon, pending, servers_of,
};
use crate::nvml::{Processes, Usage};
use crate::settings::Serve;

/// For how long somebody else's control session is waited for before the daemon is called busy, and
/// for how long a daemon may take to answer.
const PATIENCE: Duration = Duration::from_millis(1500);
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// How often, and how far apart, the main thread of a daemon that may hang is looked at.
const SAMPLES: u32 = 4;
const BETWEEN_SAMPLES: Duration = Duration::from_millis(25);

/// How long a server may take to get its GPU: 0.3 s on an H200, and many start one after the other.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How long a process whose pipe directory is gone may still be ending, before it is called an orphan.
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

/// Whether somebody is changing something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changing {
    Yes,
    No,
    /// The caller may not know.
    Hidden,
}

/// What one daemon is seen by.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) changing: Changing,
    /// Whether the caller may open a control session with it.
    pub(super) may_ask: bool,
    pub(super) program: ControlProgram,
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

impl<'a> View<'a> {
    /// Finds out whether the recorded daemon lives: its process id if it can be looked at closer. That is a matter of
    /// its recorded process alone: in a user's directory the user may hold any lock.
    pub(super) fn liveness(self, served: &mut Served) -> Option<Pid> {
        let record = &served.record;
        if record.boot_id != self.boot_id {
            return None;
        }
        let Some(id) = record.daemon else {
            return self.starting(served);
        };
        if id.is_hidden(self.host) {
            served.life = Life::Hidden;
            return None;
        }
        id.running(self.host)?;
        if self.is_unreachable(served) {
            let held = self.host.open_process(id.pid, id.start_time);
            // A process that ends lets go of its files first.
            if held.is_some_and(|held| !held.ends_within(DYING)) {
                served.life = Life::Orphan;
            }
            return None;
        }
        served.life = if served.record.finished {
            Life::Hidden
        } else {
            Life::Starting
        };
        Some(id.pid)
    }

    /// A daemon that a start has not yet recorded.
    fn starting(self, served: &mut Served) -> Option<Pid> {
        let holder = match self.daemon(served).lock_holder() {
            LockHolder::Process(pid) => self.host.process(pid).filter(is_daemon),
            LockHolder::Unseen | LockHolder::Hidden => {
                served.life = Life::Hidden;
                return None;
            }
            LockHolder::Nobody => None,
        };
        if holder.is_some() || (self.changing == Changing::Yes && !served.record.finished) {
            served.life = Life::Starting;
        } else if self.changing == Changing::Hidden && !served.record.finished {
            served.life = Life::Hidden;
        }
        Some(holder?.pid)
    }

    /// True if the daemon's pipe directory is gone, or another one lies in its place.
    fn is_unreachable(self, served: &Served) -> bool {
        self.daemon(served).lock_holder() == LockHolder::Nobody && !self.daemon(served).is_covered()
    }

    /// Fills in what can be told without a control session; `false` where a question is left.
    ///
    /// A fault lasts hardly longer than the clients that met it: a server that computes and has long had no
    /// clients serves. A server that NVML does not list yet is starting, and its daemon must be
    /// asked; so must one with clients, and one that somebody's program has just started or left.
    pub(super) fn tells(self, served: &mut Served, daemon: Pid, logs: Option<&LogDir>) -> bool {
        let Some(processes) = self.processes.filter(|_| served.record.finished) else {
            return false;
        };
        let is_running = |process: &Process| !process.is_stopped && !process.is_ending;
        if !processes.clients.is_empty() || !self.table.get(daemon).is_some_and(is_running) {
            return false;
        }
        if !self.daemon(served).has_socket() || self.is_busy(daemon) != Some(false) {
            return false;
        }
        let children = self.servers(daemon);
        served.life = match children.as_slice() {
            [] if processes.compute.is_empty() => Life::NoServerYet,
            [only]
                if is_running(only)
                    && lists(&processes.compute, only.pid)
                    && is_proven(served, only, logs) =>
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

    /// The servers of the daemon.
    fn servers(self, daemon: Pid) -> Vec<&'a Process> {
        let daemon = self.table.get(daemon).into_iter();
        daemon
            .flat_map(|daemon| servers_of(self.table, daemon))
            .collect()
    }

    /// Asks the daemon, unless everything else is as it was when it answered before; returns what may do again.
    pub(super) fn ask(
        self,
        served: &mut Served,
        daemon: Pid,
        logs: Option<&LogDir>,
    ) -> Option<Remembered> {
        let process = self.table.get(daemon);
        if process.is_some_and(|process| process.is_stopped) {
            served.life = Life::NoAnswer;
            return None;
        }
        if self.daemon(served).is_covered() {
            served.life = Life::NoAnswer;
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
        // Before it is asked: what happens meanwhile is news for the next look.
        let seen = process
            .and_then(|process| Seen::of(served, process, &children, self.processes, logs))
            .filter(|_| served.record.finished);
        if let Some(known) = self
            .answer
            .filter(|known| seen.as_ref() == Some(&known.seen))
        {
            match &known.glance {
                Some(glance) => {
                    self.fill_in(served, glance);
                    return Some(known.clone());
                }
                // It may have come to itself.
                None if self.is_busy(daemon) != Some(false) => {
                    self.fill_in_hung(served, daemon);
                    return Some(known.clone());
                }
                None => {}
            }
        }
        let mut children: Vec<Pid> = children.iter().map(|child| child.pid).collect();
        let asked = self.daemon_with(served, logs.map_or(Path::new(""), LogDir::path));
        let mut glance = if asked.has_socket() {
            asked.query(&children, self.with_defaults, PATIENCE, ANSWER_LIMIT)
        } else {
            // It would answer its owner by another socket, and no program finds it.
            Err(MpsError::NoDaemon(
                served.run_dir.pipe_dir(&served.record.uuid),
            ))
        };
        let is_odd = |server: &ServerStatus| match server.state {
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
            glance = asked.query(&children, self.with_defaults, PATIENCE, ANSWER_LIMIT);
        }
        self.take(glance, served, daemon, &children, seen)
    }

    /// Fills in what came of asking; returns what may do again.
    fn take(
        self,
        glance: Result<DaemonStatus, MpsError>,
        served: &mut Served,
        daemon: Pid,
        children: &[Pid],
        seen: Option<Seen>,
    ) -> Option<Remembered> {
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
                return Some(Remembered {
                    seen,
                    glance: Some(glance),
                });
            }
            // Sessions that are queued behind one that hangs are called busy too.
            Err(MpsError::Busy { .. })
                if self.program.queues_sessions
                    && self.is_busy(daemon) == Some(true)
                    && !self.starts_a_server(daemon) =>
            {
                self.fill_in_hung(served, daemon);
                return Some(Remembered {
                    seen: seen?,
                    glance: None,
                });
            }
            Err(MpsError::Busy { .. }) => {
                served.life = Life::Busy;
                served.servers = children.iter().map(|&pid| self.server(pid)).collect();
            }
            Err(MpsError::NoDaemon(_)) => {
                let finished = served.record.finished;
                let limit = if finished { END_LIMIT } else { DYING };
                if self.is_gone(daemon, limit) {
                    served.life = Life::Dead;
                } else if !finished {
                    // It takes its lock before it listens.
                    served.life = Life::Starting;
                } else if self.is_unreachable(served) {
                    // Its directory has gone while it was asked.
                    served.life = Life::Orphan;
                } else {
                    served.life = Life::NoAnswer;
                    served.problem = Some("no program reaches it by its socket".to_owned());
                }
            }
            Err(MpsError::Program(RunError::Late { .. })) => {
                if self.is_gone(daemon, DYING) {
                    served.life = Life::Dead;
                } else if self.starts_a_server(daemon) {
                    served.life = Life::Starting;
                } else if self.is_busy(daemon) == Some(false) {
                    served.life = Life::NoAnswer;
                    served.problem = Some(format!(
                        "it did not answer within {} s",
                        ANSWER_LIMIT.as_secs()
                    ));
                } else {
                    self.fill_in_hung(served, daemon);
                    return Some(Remembered {
                        seen: seen?,
                        glance: None,
                    });
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

    /// True if the daemon or a server does not wait for whatever comes next, in several samples: it may hang. Measured
    /// on an H200: the main threads of healthy ones sit in `poll`, and so do all threads of a server without clients.
    /// Of a hung device a worker thread of the server sits in a futex, then its main thread too, and the daemon's in
    /// `recvmsg` as soon as it wants something of the server. `None` where that is hidden.
    fn is_busy(self, daemon: Pid) -> Option<bool> {
        let servers = self.servers(daemon);
        let mut pids: Vec<Pid> = servers.iter().map(|server| server.pid).collect();
        pids.push(daemon);
        let has_clients = self
            .processes
            .is_none_or(|processes| !processes.clients.is_empty());
        let is_waiting = |process: &Process| {
            if process.pid == daemon || has_clients {
                process.is_polling()
            } else {
                process.is_polling_in_all_threads()
            }
        };
        for sample in 0..SAMPLES {
            if sample > 0 {
                std::thread::sleep(BETWEEN_SAMPLES);
            }
            let mut busy = Vec::new();
            for &pid in &pids {
                if !is_waiting(&self.host.process(pid)?)? {
                    busy.push(pid);
                }
            }
            pids = busy;
            if pids.is_empty() {
                return Some(false);
            }
        }
        Some(true)
    }

    /// True if one of its servers has not got a GPU yet: until then the daemon answers nobody.
    fn starts_a_server(self, daemon: Pid) -> bool {
        let is_new = |server: &&Process| {
            let is_listed = self
                .processes
                .is_some_and(|processes| lists(&processes.compute, server.pid));
            !is_listed && server.age().is_none_or(|age| age < START_LIMIT)
        };
        self.servers(daemon).iter().any(is_new)
    }

    /// Fills in what the kernel and NVML tell of a daemon that hangs.
    fn fill_in_hung(self, served: &mut Served, daemon: Pid) {
        served.life = Life::Hung;
        self.fill_in_processes(served, daemon);
    }

    /// Fills in what the kernel and NVML tell of a user's daemon, with which root opens no session. Its state is what
    /// its log claims.
    fn fill_in_unasked(self, served: &mut Served, daemon: Pid, logs: Option<&LogDir>) {
        self.fill_in_processes(served, daemon);
        if self.processes.is_none() {
            // Without the driver's lists nothing is known of its clients.
            served.life = Life::Hidden;
            return;
        }
        let servers = self.servers(daemon);
        let has_gpu = |server: &&Process| {
            self.processes
                .is_some_and(|processes| lists(&processes.compute, server.pid))
        };
        served.life = if !served.record.finished || !self.daemon(served).has_socket() {
            Life::Starting
        } else if self.is_busy(daemon) == Some(true) && !self.starts_a_server(daemon) {
            Life::Hung
        } else if servers.is_empty() {
            Life::NoServerYet
        } else if !servers.iter().all(has_gpu) {
            Life::Starting
        } else if servers
            .iter()
            .any(|server| logs.is_some_and(|logs| logs.has_fault(server.pid)))
        {
            Life::Fault
        } else {
            Life::Ready
        };
    }

    fn fill_in_processes(self, served: &mut Served, daemon: Pid) {
        let servers = self.servers(daemon);
        let of = servers.first().map(|server| server.pid);
        served.servers = servers
            .iter()
            .map(|server| self.server(server.pid))
            .collect();
        served.is_known = self.processes.is_some();
        let clients = self
            .processes
            .into_iter()
            .flat_map(|processes| &processes.clients);
        served.clients = clients
            .map(|usage| self.client(Pid(usage.pid), of))
            .collect();
    }

    /// Whether a daemon that nobody can reach has ended, or does.
    fn is_gone(self, daemon: Pid, limit: Duration) -> bool {
        let process = self.host.process(daemon);
        let held = process.and_then(|process| self.host.open_process(daemon, process.started));
        held.is_none_or(|held| held.ends_within(limit))
    }

    /// The directory of the daemon's logs: what it was told, or where they belong. A user's daemon may claim anything.
    pub(super) fn log_dir(self, daemon: Pid, home: Option<PathBuf>) -> Option<PathBuf> {
        let process = self.table.get(daemon)?;
        let is_trusted = process
            .owner()
            .is_some_and(|owner| owner == Uid::ROOT || owner == caller());
        let told = process.environment("CUDA_MPS_LOG_DIRECTORY");
        let told = told.filter(|_| is_trusted);
        told.map(PathBuf::from).or(home)
    }

    /// Finds the programs that wait in `cuInit` because another user's are served: only the daemon's log tells
    /// of them. A server for everybody keeps nobody waiting.
    pub(super) fn find_waiting(self, served: &mut Served, logs: Option<&LogDir>) {
        let is_occupied = !served.clients.is_empty() || served.life == Life::Starting;
        let Some(logs) =
            logs.filter(|_| is_occupied && served.record.settings.serve != Some(Serve::All))
        else {
            return;
        };
        // What was put aside a moment ago tells of them too.
        let log = logs.end_of(LogFile::Control, ENOUGH_LOG);
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

    fn fill_in(self, served: &mut Served, glance: &DaemonStatus) {
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
        let of_server = |server: &ServerStatus| {
            let of = Some(server.pid);
            let clients = server.clients.iter();
            clients.map(|&pid| self.client(pid, of)).collect::<Vec<_>>()
        };
        served.clients = glance.servers.iter().flat_map(of_server).collect();
    }

    fn daemon(self, served: &Served) -> Daemon {
        self.daemon_with(served, Path::new(""))
    }

    /// The daemon, with what its logs say.
    fn daemon_with(self, served: &Served, log_dir: &Path) -> Daemon {
        let pipe = served.run_dir.pipe_dir(&served.record.uuid);
        Daemon::new(
            self.programs.cloned().unwrap_or_default(),
            self.program,
            pipe,
            log_dir.to_owned(),
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
fn is_proven(served: &Served, only: &Process, logs: Option<&LogDir>) -> bool {
    let recorded = served.run_dir.recorded_at(&served.record.uuid);
    let recorded = recorded.and_then(|at| at.elapsed().ok());
    let Some(age) = only.age() else {
        return false;
    };
    if age < PROVEN && recorded.is_none_or(|recorded| age + TICK < recorded) {
        return false;
    }
    let written = logs.and_then(|logs| logs.mark(LogFile::Server)?.1.elapsed().ok());
    written.is_none_or(|written| {
        written > QUIET || recorded.is_some_and(|recorded| recorded < written + LOG_DELAY)
    })
}

fn lists(usages: &[Usage], pid: Pid) -> bool {
    usages.iter().any(|usage| usage.pid == pid.0)
}
