//! A daemon that is being examined: whether it runs, whether it hangs, and its state without a control session.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use crate::host::{
    Environment, Host, MpsPrograms, Pid, Process, ProcessTable, StartTime, Uid, caller, lock,
};
use crate::mps::{
    ControlProgram, Daemon, DaemonStatus, LockHolder, LogDir, LogFile, LogLine, is_daemon,
    log_shows_ready, pending_clients, servers_of,
};
use crate::node::{Client, Clients, DaemonState, Served, ServerProcess};
use crate::nvml::{Processes, Usage};
use crate::settings::Serve;

/// The facts that the daemons of a snapshot have in common.
#[derive(Clone, Copy)]
pub(super) struct ProbeContext<'a> {
    pub(super) program: ControlProgram,
    pub(super) programs: Option<&'a MpsPrograms>,
    pub(super) host: &'a Host,
    pub(super) table: &'a ProcessTable,
    pub(super) boot_id: &'a str,
    /// The state of a device whose start has neither finished nor recorded a daemon.
    pub(super) unfinished: &'a DaemonState,
    /// True if the jobs, pods and containers of clients are read.
    pub(super) reads_workloads: bool,
}

/// A recorded daemon that runs, and everything that is needed to find out its state.
pub(super) struct Probe<'a> {
    pub(super) context: ProbeContext<'a>,
    pub(super) served: &'a mut Served,
    pub(super) daemon: Pid,
    /// True if NVML and `/proc` are enough where they leave no question open.
    pub(super) may_guess: bool,
    /// The time that it may take to answer.
    pub(super) limit: Duration,
    /// The processes on the device; `None` if hidden.
    pub(super) processes: Option<&'a Processes>,
    pub(super) logs: Option<LogDir>,
    /// The daemon's last answer, if it may be used again.
    pub(super) last: Option<RememberedAnswer>,
}

/// An answer, and everything that could be seen without asking at that time. While that stays unchanged, so does the
/// answer.
#[derive(Clone, Debug)]
pub(super) struct RememberedAnswer {
    pub(super) at: Instant,
    pub(super) seen: VisibleSigns,
    /// `None` if the daemon hung.
    pub(super) answer: Option<DaemonStatus>,
}

/// The time for which an answer counts. A daemon may stop answering without any other sign, and a session adds about 100 bytes
/// to its log.
const ANSWER_LASTS: Duration = Duration::from_secs(30);

impl RememberedAnswer {
    /// Returns the answer while it counts: nothing that can be seen has changed since. A daemon that hung is not asked again
    /// because of the time.
    pub(super) fn while_current(self, seen: Option<&VisibleSigns>, now: Instant) -> Option<Self> {
        let is_old = self.answer.is_some() && now.duration_since(self.at) >= ANSWER_LASTS;
        (seen == Some(&self.seen) && !is_old).then_some(self)
    }
}

/// The last answers of daemons to this process, by the daemons' pids: a command waits once for one that hangs.
static LAST_ANSWERS: Mutex<BTreeMap<Pid, RememberedAnswer>> = Mutex::new(BTreeMap::new());

pub(super) fn last_answers() -> MutexGuard<'static, BTreeMap<Pid, RememberedAnswer>> {
    lock(&LAST_ANSWERS)
}

/// The signs of a daemon that are visible without a control session.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct VisibleSigns {
    pub(super) processes: Vec<(Pid, StartTime)>,
    pub(super) compute: Option<BTreeSet<Pid>>,
    pub(super) clients: Option<BTreeSet<Pid>>,
    /// The length of its server.log, and the time of its last line: every fault, and every client that arrives or
    /// leaves, adds a line, and control sessions do not.
    pub(super) log: (u64, SystemTime),
    /// The programs that the daemon keeps waiting, by its log.
    pub(super) waiting: Vec<(Pid, Uid)>,
    /// The time of its record: `set` and `up` change the answers.
    pub(super) recorded: Option<SystemTime>,
}

impl ProbeContext<'_> {
    pub(super) fn daemon_of(self, served: &Served, logs: Option<&LogDir>) -> Daemon {
        Daemon::new(
            self.programs.cloned().unwrap_or_default(),
            self.program,
            served.run_dir.pipe_dir(&served.record.uuid),
            logs.map_or(PathBuf::new(), |logs| logs.path().to_owned()),
        )
        .with_devices(served.record.key.gpus().len())
    }

    /// Returns the state of the recorded daemon as far as its process tells it, and the pid if it runs and can be seen.
    /// Only the recorded process counts: any process can hold a lock.
    pub(super) fn process_state(self, served: &Served) -> (DaemonState, Option<Pid>) {
        let record = &served.record;
        if record.boot_id != self.boot_id {
            return (DaemonState::Dead, None);
        }
        let Some(id) = record.daemon else {
            return self.unrecorded_state(served);
        };
        if id.is_hidden(self.host) {
            return (DaemonState::Hidden, None);
        }
        let Some(process) = id.find_process(self.host) else {
            return (DaemonState::Dead, None);
        };
        if self.is_unreachable(served) {
            // A process closes its files before it exits.
            return if self.ends_within(id.pid, id.start_time, EXIT_GRACE) {
                (DaemonState::Dead, None)
            } else {
                (DaemonState::Orphan, Some(id.pid))
            };
        }
        let state = if process.is_stopped {
            DaemonState::Suspended
        } else if record.closing.is_some() {
            DaemonState::Closing
        } else if record.finished {
            DaemonState::Hidden
        } else {
            DaemonState::Starting
        };
        (state, Some(id.pid))
    }

    /// True if the process has exited or does within this time, or a while later if the kernel is ending it already.
    fn ends_within(self, pid: Pid, started: StartTime, limit: Duration) -> bool {
        let held = match self.host.open_process(pid, started) {
            Ok(Some(held)) => held,
            Ok(None) => return true,
            Err(_) => return false,
        };
        let is_ending = || self.host.find_process(pid).is_none_or(|now| now.is_ending);
        held.wait_for_exit(limit) || is_ending() && held.wait_for_exit(KERNEL_EXIT_TIMEOUT)
    }

    /// Returns the state of a daemon that its start has not recorded yet, and its pid.
    fn unrecorded_state(self, served: &Served) -> (DaemonState, Option<Pid>) {
        let holder = match self.daemon_of(served, None).lock_holder() {
            LockHolder::Process(pid) => self.host.find_process(pid).filter(is_daemon),
            LockHolder::Hidden => return (DaemonState::Hidden, None),
            LockHolder::Nobody => None,
        };
        match holder {
            Some(holder) if holder.is_stopped => (DaemonState::Suspended, Some(holder.pid)),
            Some(holder) => (DaemonState::Starting, Some(holder.pid)),
            None if served.record.finished => (DaemonState::Dead, None),
            None => (self.unfinished.clone(), None),
        }
    }

    /// True if the daemon's pipe directory is gone or was replaced.
    pub(super) fn is_unreachable(self, served: &Served) -> bool {
        let daemon = self.daemon_of(served, None);
        daemon.lock_holder() == LockHolder::Nobody && !daemon.is_hidden_by_mount()
    }
}

impl<'a> Probe<'a> {
    /// Returns the daemon's process, if it was seen.
    pub(super) fn daemon_process(&self) -> Option<&'a Process> {
        self.context.table.get(self.daemon)
    }

    /// Returns the server processes of the daemon.
    pub(super) fn server_processes(&self) -> Vec<&'a Process> {
        self.daemon_process()
            .into_iter()
            .flat_map(|daemon| servers_of(self.context.table, daemon))
            .collect()
    }

    /// Lists the servers, with their users.
    pub(super) fn list_servers(&mut self, pids: impl IntoIterator<Item = Pid>) {
        let host = self.context.host;
        let server = |pid| {
            let process = host.find_process(pid);
            ServerProcess {
                pid,
                user: process.as_ref().and_then(Process::owner),
                started: process.map(|process| process.started),
            }
        };
        self.served.servers = pids.into_iter().map(server).collect();
    }

    /// Describes a client. Its pid is `None` if it cannot be seen from here.
    pub(super) fn describe_client(&self, pid: Option<Pid>, server: Option<Pid>) -> Client {
        let process = pid.and_then(|pid| self.context.host.find_process(pid));
        let usage = self.process_usages().find(|usage| {
            // A process may be on both lists, and have its memory on one alone.
            Some(usage.pid) == pid && usage.memory.is_some()
        });
        // NVML lists a client of a joint device under each GPU, and among those that compute where it has a context.
        let computes = self
            .processes
            .iter()
            .flat_map(|processes| &processes.compute)
            .find(|usage| Some(usage.pid) == pid);
        Client {
            pid,
            started: process.as_ref().map(|process| process.started),
            server,
            user: process.as_ref().and_then(Process::owner),
            command: process.as_ref().map(Process::command_line),
            workload: match &process {
                Some(process) if self.context.reads_workloads => process.find_workload(),
                _ => None,
            },
            memory: usage.and_then(|usage| usage.memory),
            gpus: computes.map_or_else(Vec::new, |usage| usage.gpus.clone()),
            age: process.as_ref().and_then(Process::age),
        }
    }

    /// Returns NVML's lists of clients and of processes that compute.
    pub(super) fn process_usages(&self) -> impl Iterator<Item = &'a Usage> {
        self.processes
            .into_iter()
            .flat_map(|processes| processes.clients.iter().chain(&processes.compute))
    }

    /// True if the daemon may open no more files: it accepts no connection, and its log fills with the attempts.
    pub(super) fn is_out_of_files(&self) -> bool {
        let Some(logs) = &self.logs else { return false };
        let written = logs
            .length_and_mtime(LogFile::Control)
            .and_then(|(_, written)| written.elapsed().ok());
        if written.is_none_or(|age| age > LOG_FLOOD_MAX_AGE) {
            return false;
        }
        let end = logs.text_at_end(LogFile::Control.name(), 0, LOG_FLOOD_BYTES);
        let lines: Vec<&str> = end.lines().collect();
        // The first and the last line may be incomplete.
        let whole = lines.get(1..lines.len().saturating_sub(1));
        end.len() as u64 == LOG_FLOOD_BYTES
            && whole.unwrap_or_default().iter().all(|line| {
                let line = LogLine::parse(LogFile::Control, line);
                [ACCEPT_ATTEMPT_LINE, ACCEPT_REFUSAL_LINE].contains(&line.text.trim())
            })
    }

    /// True if the daemon has exited, or does within this time.
    pub(super) fn is_gone(&self, limit: Duration) -> bool {
        let process = self.context.host.find_process(self.daemon);
        process.is_none_or(|process| {
            self.context
                .ends_within(self.daemon, process.started, limit)
        })
    }

    /// True if the daemon or a server does not wait for the next request, in several samples: it may hang. `None` if
    /// that is hidden.
    ///
    /// Measured on an H200: the main threads of healthy processes sit in `poll`, and so do all threads of a server
    /// without clients. On a hung device a worker thread of the server sits in a futex, then its main thread too, and
    /// the daemon's in `recvmsg` as soon as it sends the server a request.
    pub(super) fn is_busy(&self) -> Option<bool> {
        let servers = self.server_processes();
        let mut pids: Vec<Pid> = servers.iter().map(|server| server.pid).collect();
        pids.push(self.daemon);
        let has_clients = self
            .processes
            .is_none_or(|processes| !processes.clients.is_empty());
        let is_waiting = |process: &Process| {
            if process.pid == self.daemon || has_clients {
                process.is_polling()
            } else {
                process.is_polling_in_all_threads()
            }
        };
        for sample in 0..BUSY_SAMPLES {
            if sample > 0 {
                std::thread::sleep(SAMPLE_INTERVAL);
            }
            let mut busy = Vec::new();
            for &pid in &pids {
                if !is_waiting(&self.context.host.find_process(pid)?)? {
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

    /// True if one of its servers has no GPU yet: until then the daemon answers nobody.
    pub(super) fn has_starting_server(&self) -> bool {
        self.server_processes().iter().any(|server| {
            let is_up = match self.processes {
                Some(processes) => processes.contains_pid(server.pid),
                None => self.was_ready(server),
            };
            !is_up && server.age().is_none_or(|age| age < SERVER_START_TIMEOUT)
        })
    }

    /// True if a server has had more than enough time to get its GPU.
    pub(super) fn is_overdue(&self, server: Pid) -> bool {
        let process = self.context.table.get(server);
        process
            .and_then(Process::age)
            .is_some_and(|age| age >= SERVER_START_TIMEOUT)
    }

    /// True if a server is young and has not been ready yet.
    pub(super) fn is_starting(&self, server: &Process) -> bool {
        server.age().is_none_or(|age| age < SERVER_START_TIMEOUT) && !self.was_ready(server)
    }

    /// True if the server was ready once: it is older than the finished record, or the daemon logged it.
    fn was_ready(&self, server: &Process) -> bool {
        let record = &self.served.record;
        let recorded_at = self.served.run_dir.recorded_at(&record.uuid);
        let recorded = recorded_at.and_then(|at| at.elapsed().ok());
        if let (Some(age), Some(recorded)) = (server.age(), recorded)
            && record.finished
            && age > recorded
        {
            return true;
        }
        let Some(logs) = &self.logs else {
            return false;
        };
        log_shows_ready(&logs.end_of(LogFile::Control, LOG_END_BYTES), server.pid)
    }

    /// Returns the state of the daemon by NVML and `/proc`; `None` if it must be asked.
    ///
    /// A fault lasts hardly longer than the clients that met it, so a server that has long had a context and no
    /// clients is ready. A daemon must be asked if NVML does not list its server yet, if the server has clients, or if
    /// one has just arrived or left.
    pub(super) fn passive_state(&mut self) -> Option<DaemonState> {
        if self.is_out_of_files() {
            self.list_clients();
            return Some(DaemonState::Hung(NO_MORE_FILES.to_owned()));
        }
        if !self.served.record.finished || !self.may_guess {
            return None;
        }
        let processes = self.processes?;
        let is_running = |process: &Process| !process.is_stopped && !process.is_ending;
        if !processes.clients.is_empty()
            || !self.daemon_process().is_some_and(is_running)
            || !self.context.daemon_of(self.served, None).has_socket()
            || self.is_busy() != Some(false)
        {
            return None;
        }
        let servers = self.server_processes();
        let state = match servers.as_slice() {
            [] if processes.compute.is_empty() => DaemonState::NoServerYet,
            [only]
                if is_running(only)
                    && processes.contains_pid(only.pid)
                    && self.is_proven_ready(only) =>
            {
                DaemonState::Ready
            }
            _ => return None,
        };
        self.served.clients = Clients::Known(Vec::new());
        Some(state)
    }

    /// True if a server that NVML lists without clients is ready: `up` found it so, or it is old, and nothing has
    /// happened since that may still occupy it.
    fn is_proven_ready(&self, only: &Process) -> bool {
        let recorded = self
            .served
            .run_dir
            .recorded_at(&self.served.record.uuid)
            .and_then(|at| at.elapsed().ok());
        let Some(age) = only.age() else {
            return false;
        };
        if age < SERVER_TRUSTED_AFTER
            && recorded.is_none_or(|recorded| age + PROC_AGE_PRECISION < recorded)
        {
            return false;
        }
        let logs = self.logs.as_ref();
        let written =
            logs.and_then(|logs| logs.length_and_mtime(LogFile::Server)?.1.elapsed().ok());
        written.is_none_or(|written| {
            written > LOG_QUIET_FOR
                || recorded.is_some_and(|recorded| recorded < written + LOG_DELAY)
        })
    }

    /// Returns the state of a daemon that hangs, and lists its clients.
    pub(super) fn hung_state(&mut self) -> DaemonState {
        self.list_clients();
        DaemonState::Hung("a client died while it connected".to_owned())
    }

    /// Returns the state of a daemon that runs as its user, by NVML and `/proc` alone.
    pub(super) fn state_without_asking(&mut self) -> DaemonState {
        self.list_clients();
        if self.processes.is_none() {
            // Without the driver's lists its clients are unknown.
            DaemonState::Hidden
        } else if self.is_busy() == Some(true) && !self.has_starting_server() {
            self.hung_state()
        } else if self.server_processes().is_empty() {
            DaemonState::NoServerYet
        } else {
            DaemonState::Ready
        }
    }

    /// Lists the clients by NVML.
    pub(super) fn list_clients(&mut self) {
        let first = self.served.servers.first().map(|server| server.pid);
        let client = |usage: &Usage| {
            let pid = Some(usage.pid).filter(|pid| pid.0 != 0);
            self.describe_client(pid, first)
        };
        // The change that has closed a device has left a client there, which computes nothing.
        let closing = self.served.record.closing.as_ref();
        let held = closing.and_then(|closing| closing.find_held_client(self.context.host));
        let held = held.map(|process| process.pid);
        self.served.clients = match self.processes {
            Some(processes) => {
                let is_of_program = |usage: &&Usage| Some(usage.pid) != held;
                let programs = processes.clients.iter().filter(is_of_program);
                Clients::Known(programs.map(client).collect())
            }
            None => Clients::Partial(Vec::new()),
        };
    }

    /// Finds the programs that wait in `cuInit` because another user's are served. Only the daemon's log names them.
    /// With `serve = "all"` nobody waits.
    pub(super) fn find_waiting(&mut self) {
        let served = &self.served;
        let is_occupied =
            !served.clients.as_slice().is_empty() || served.state == DaemonState::Starting;
        if !is_occupied || served.record.settings.serve == Some(Serve::All) {
            return;
        }
        // Includes a log that was rotated a moment ago.
        let logs = self.logs.as_ref();
        let log = logs.map_or_else(String::new, |logs| {
            logs.end_of(LogFile::Control, LONG_LOG_BYTES)
        });
        let computes = |pid: Pid| self.process_usages().any(|usage| usage.pid == pid);
        let waiting = pending_clients(&log)
            .into_iter()
            .filter(|(pid, _)| !served.clients.contains_pid(*pid) && !computes(*pid))
            .map(|(pid, user)| (self.describe_client(Some(pid), None), user))
            // Another process may have the pid by now.
            .filter(|(client, user)| client.user == Some(*user))
            .map(|(client, _)| client)
            .collect();
        self.served.waiting = waiting;
    }
}

/// Time that a process whose pipe directory is gone gets to exit, before it is called an orphan.
pub(super) const EXIT_GRACE: Duration = Duration::from_millis(50);

/// Time that the kernel gets to end a process: it took 290 ms on a machine under load, and a hung GPU can keep a process
/// for ever.
const KERNEL_EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Samples of the threads of a daemon that may hang, and the time between them.
const BUSY_SAMPLES: u32 = 4;
const SAMPLE_INTERVAL: Duration = Duration::from_millis(25);

/// The bytes that are read from the end of a daemon's log.
pub(super) const LOG_END_BYTES: u64 = 64 << 10;

/// The bytes of its end in which a client that has just come to wait is found.
pub(super) const RECENT_LOG_BYTES: u64 = 4 << 10;

/// Time that a server may take to get its GPU: 0.3 s on an H200, and many start one after the other.
const SERVER_START_TIMEOUT: Duration = Duration::from_secs(60);

/// The reason why a device hangs whose daemon may open no more files.
const NO_MORE_FILES: &str =
    "its daemon has used up its limit of open files and accepts no connection";

/// Measured: a daemon that may open no more files logs these two lines for every attempt to accept a waiting connection,
/// and tries again at once.
const ACCEPT_ATTEMPT_LINE: &str = "Accepting connection...";
const ACCEPT_REFUSAL_LINE: &str = "Unable to accept connection";

/// Such a log was written no longer ago than this, and has nothing else in so many bytes at its end.
const LOG_FLOOD_MAX_AGE: Duration = Duration::from_millis(500);
const LOG_FLOOD_BYTES: u64 = 4 << 10;

/// Returns the log directory that a daemon was started with, or the default one. The environment of another user's
/// daemon is not trusted.
pub(super) fn log_path(
    environment: &Environment,
    daemon: Option<&Process>,
    served: &Served,
) -> Option<PathBuf> {
    let configured = daemon
        .filter(|daemon| [Some(Uid::ROOT), Some(caller())].contains(&daemon.owner()))
        .and_then(|daemon| daemon.environment_bytes("CUDA_MPS_LOG_DIRECTORY"));
    if let Some(configured) = configured {
        return Some(configured.into());
    }
    let logs = environment.logs_of(served.run_dir.path())?;
    Some(logs.join(&served.record.uuid))
}

/// The age at which a server counts as ready because NVML lists it: 200 times its start on an H200. NVML lists it as
/// soon as it has its context.
const SERVER_TRUSTED_AFTER: Duration = Duration::from_secs(60);

/// Time without new lines in the server's log: it recovers from a fault within about a second after its clients have
/// exited, and NVML lists no clients meanwhile.
const LOG_QUIET_FOR: Duration = Duration::from_secs(5);

/// Delay after which the last line about a server that `up` found ready may be written: its daemon writes that log.
const LOG_DELAY: Duration = Duration::from_secs(1);

/// The precision of a process's age: the kernel reports it, and the time since boot, in hundredths of a second.
const PROC_AGE_PRECISION: Duration = Duration::from_millis(10);

/// The bytes that are read from the end of a daemon's log: half a day of a program that asks every ten seconds.
const LONG_LOG_BYTES: u64 = 1 << 20;
