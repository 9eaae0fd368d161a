//! Finds out the state of every recorded daemon: without asking it if possible, else in a control session.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use super::daemon_passive::{
    EXIT_GRACE, LOG_END_BYTES, Probe, ProbeContext, RECENT_LOG_BYTES, RememberedAnswer,
    VisibleSigns, last_answers, log_path,
};
use super::observer::{Ask, Detail};
use crate::host::{Environment, Pid, ProcessTable, RunError, Threads, Uid, caller};
use crate::mps::{
    DaemonStatus, LogDir, LogFile, MpsError, ServerState, ServerStatus, logged_fault_victims,
    pending_clients, servers_of,
};
use crate::node::{Client, Clients, DaemonState, Node, ServerProcess};
use crate::nvml::Usage;

/// Time to wait for another control session, before the daemon is called busy.
const BUSY_TIMEOUT: Duration = Duration::from_millis(1500);

/// Time that a daemon may take to answer, and what each daemon that is asked adds to it: they share the CPUs.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const EXTRA_TIME_PER_DAEMON: Duration = Duration::from_millis(25);

/// Sessions after one during which a server changed.
const RETRIES: u32 = 2;

/// Time that a daemon's process may outlive its socket when it exits.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);

/// Fills in the state of every recorded daemon. One may take up to `limit` to answer. [`Ask::Each`] means the devices named in
/// `asked`, or all.
pub(super) fn observe_daemons(
    environment: &Environment,
    table: &ProcessTable,
    detail: Detail,
    asked: Option<&[String]>,
    limit: Duration,
    node: &mut Node,
) {
    let program = node.control_program();
    let programs = environment.mps_programs().ok();
    let unfinished = match node.under_way.as_slice() {
        [] if node.may_be_changing() => DaemonState::Hidden,
        [] => DaemonState::Dead,
        _ => DaemonState::Starting,
    };
    let context = ProbeContext {
        program,
        programs: programs.as_ref(),
        host: &environment.host,
        table,
        boot_id: &node.boot_id,
        unfinished: &unfinished,
        reads_workloads: detail.reads_workloads(),
    };
    let mut probes = Vec::new();
    for device in &mut node.devices {
        let Some(served) = &mut device.served else {
            continue;
        };
        let (state, daemon) = context.process_state(served);
        let process = daemon.and_then(|pid| table.get(pid));
        // The process table has the servers whatever the daemon's state. A control session may tell more.
        served.servers = process
            .into_iter()
            .flat_map(|daemon| servers_of(table, daemon))
            .map(ServerProcess::from_process)
            .collect();
        let may_answer = ![DaemonState::Orphan, DaemonState::Suspended].contains(&state);
        served.state = state;
        let (Some(daemon), true) = (daemon, may_answer && detail.reads_processes()) else {
            continue;
        };
        let logs = process
            .and_then(|process| log_path(environment, Some(process), served))
            .and_then(|path| LogDir::open(&path).ok());
        // Only a session reads settings back.
        let is_asked = asked.is_none_or(|names| names.contains(&served.record.name));
        let may_guess = detail.ask == Ask::IfNeeded || !is_asked;
        let mut probe = Probe {
            context,
            served,
            daemon,
            may_guess,
            limit,
            processes: device.processes.as_ref(),
            logs,
            last: last_answers().get(&daemon).cloned(),
        };
        // It answers no session.
        if probe.served.state == DaemonState::Closing {
            probe.list_clients();
            continue;
        }
        match probe.passive_state() {
            Some(state) => probe.served.state = state,
            None => probes.push(probe),
        }
    }
    ask_all(probes);
}

/// Sessions that are open at once for each CPU. On a busy machine, more would make each other late.
const SESSIONS_PER_CPU: usize = 4;

/// Asks daemons in parallel; each session is a child process with a time limit of its own.
fn ask_all(mut probes: Vec<Probe<'_>>) {
    let daemons = u32::try_from(probes.len()).unwrap_or(u32::MAX);
    for probe in &mut probes {
        probe.limit += EXTRA_TIME_PER_DAEMON * daemons;
    }
    let others = probes.len().saturating_sub(1);
    // The CPUs that this process may use are counted by files of its control group.
    let threads = match others {
        0 => 0,
        _ => others.min(SESSIONS_PER_CPU * available_parallelism().map_or(1, NonZero::get) - 1),
    };
    Threads::with_limit(threads).map_in_parallel(probes, |mut probe| {
        probe.served.state = probe.query_state();
        probe.find_waiting();
    });
}

impl Probe<'_> {
    /// Finds out the state of the daemon, and asks it unless nothing has changed since its last answer.
    pub(super) fn query_state(&mut self) -> DaemonState {
        if let Some(state) = self.state_without_session() {
            return state;
        }
        // Taken before the session: what happens during it must change the next snapshot.
        let seen = if self.served.record.finished {
            self.visible_signs()
        } else {
            None
        };
        let last = self.last.take();
        let last = last.and_then(|last| last.while_current(seen.as_ref(), Instant::now()));
        if let Some(last) = last
            && let Some(state) = self.state_by_last_answer(&last)
        {
            return state;
        }
        let servers = self.server_processes();
        let mut servers: Vec<Pid> = servers.iter().map(|server| server.pid).collect();
        let answer = match self.query_status(&mut servers) {
            Err(MpsError::Program(RunError::Late { .. })) if self.may_be_slow() => {
                self.query_status(&mut servers)
            }
            answer => answer,
        };
        let (state, answer, lasts) = match answer {
            Ok(mut answer) => {
                self.remove_ended_servers(&mut answer);
                self.mark_starting_servers(&mut answer);
                let lasts = stays_valid(&answer);
                (self.state_by_answer(&answer), Some(answer), lasts)
            }
            Err(error) => {
                let state = self.state_by_failure(error, &servers);
                let lasts = matches!(state, DaemonState::Hung(_));
                (state, None, lasts)
            }
        };
        let mut last_answers = last_answers();
        match seen {
            Some(seen) if lasts => {
                let at = Instant::now();
                last_answers.insert(self.daemon, RememberedAnswer { at, seen, answer })
            }
            _ => last_answers.remove(&self.daemon),
        };
        state
    }

    /// Returns the state of a daemon that cannot or may not be asked.
    fn state_without_session(&mut self) -> Option<DaemonState> {
        let daemon = self.context.daemon_of(self.served, None);
        if daemon.is_hidden_by_mount() {
            let why = "another file system is mounted on its pipe directory";
            return Some(DaemonState::NoAnswer(why.to_owned()));
        }
        if daemon.is_closed_to_caller() {
            // It serves others, who alone can tell whether it would take a client.
            self.list_clients();
            return Some(DaemonState::Hidden);
        }
        if caller() == Uid::ROOT && self.served.record.runs_as_its_user().is_some() {
            return Some(self.state_without_asking());
        }
        if self.context.programs.is_none() {
            return Some(self.served.state.clone());
        }
        None
    }

    /// Returns what can be seen without a session; `None` if the log cannot be read: a fault would stay unseen.
    fn visible_signs(&self) -> Option<VisibleSigns> {
        let pids =
            |usages: &[Usage]| -> BTreeSet<Pid> { usages.iter().map(|usage| usage.pid).collect() };
        let processes = std::iter::once(self.daemon_process()?).chain(self.server_processes());
        let logs = self.logs.as_ref()?;
        Some(VisibleSigns {
            processes: processes
                .map(|process| (process.pid, process.started))
                .collect(),
            compute: self.processes.map(|processes| pids(&processes.compute)),
            clients: self.processes.map(|processes| pids(&processes.clients)),
            log: logs.length_and_mtime(LogFile::Server)?,
            waiting: pending_clients(&logs.end_of(LogFile::Control, RECENT_LOG_BYTES)),
            recorded: self.served.run_dir.recorded_at(&self.served.record.uuid),
        })
    }

    /// Returns the state by the last answer, since everything that can be seen without a session is unchanged; `None` if
    /// the daemon may hang now, or hung and may have recovered.
    fn state_by_last_answer(&mut self, last: &RememberedAnswer) -> Option<DaemonState> {
        match (&last.answer, self.is_busy()) {
            (Some(_), Some(true)) | (None, Some(false)) => None,
            (Some(answer), _) => Some(self.state_by_answer(answer)),
            (None, _) => Some(self.hung_state()),
        }
    }

    fn query_status(&self, servers: &mut Vec<Pid>) -> Result<DaemonStatus, MpsError> {
        let daemon = self.context.daemon_of(self.served, self.logs.as_ref());
        if !daemon.has_socket() {
            // It would answer its owner by another socket, and no program finds it.
            let pipe_dir = self.served.run_dir.pipe_dir(&self.served.record.uuid);
            return Err(MpsError::NoDaemon(pipe_dir));
        }
        let query = |servers: &[Pid]| daemon.query_status(servers, true, BUSY_TIMEOUT, self.limit);
        let mut answer = query(servers)?;
        let is_odd = |server: &ServerStatus| match server.state {
            // It started or changed meanwhile, and its clients are not known.
            None => true,
            // It may have recovered.
            Some(ServerState::Fault) => server.clients.is_empty(),
            Some(_) => false,
        };
        for _ in 0..RETRIES {
            if !answer.servers.iter().any(is_odd) {
                break;
            }
            *servers = answer.servers.iter().map(|server| server.pid).collect();
            answer = query(servers)?;
        }
        Ok(answer)
    }

    /// True if a daemon that did not answer in time has no sign of a hang: on a machine under load it may only have been
    /// slow.
    fn may_be_slow(&self) -> bool {
        let is_running = |pid| {
            let process = self.context.host.find_process(pid);
            process.is_some_and(|process| process.is_running)
        };
        !self.is_gone(Duration::ZERO)
            && !self.has_starting_server()
            && (self.is_busy() == Some(false)
                || is_running(self.daemon)
                || self
                    .server_processes()
                    .iter()
                    .any(|server| is_running(server.pid)))
    }

    /// Removes servers that have ended. Measured: a killed server is listed for a moment, with a fault.
    fn remove_ended_servers(&self, answer: &mut DaemonStatus) {
        let host = self.context.host;
        answer.servers.retain(|server| {
            let process = host.find_process(server.pid);
            !host.has_ended(server.pid) && !process.is_some_and(|process| process.is_ending)
        });
    }

    /// Marks servers that are not ready yet. A control program without `get_server_status` lists a server as soon as its
    /// process exists.
    fn mark_starting_servers(&self, answer: &mut DaemonStatus) {
        if self.context.program.has_server_status {
            return;
        }
        for server in &mut answer.servers {
            let process = self.context.host.find_process(server.pid);
            let starts = process.is_some_and(|process| self.is_starting(&process));
            if server.state == Some(ServerState::Active) && starts {
                server.state = Some(ServerState::Initializing);
            }
        }
    }

    /// Returns the state of a daemon that did not answer.
    fn state_by_failure(&mut self, error: MpsError, servers: &[Pid]) -> DaemonState {
        match error {
            // Sessions that are queued behind one that hangs are reported as busy, too.
            MpsError::Busy { .. }
                if self.context.program.queues_sessions
                    && self.is_busy() == Some(true)
                    && !self.has_starting_server() =>
            {
                self.hung_state()
            }
            MpsError::Busy { .. } => {
                self.list_servers(servers.iter().copied());
                DaemonState::Busy
            }
            MpsError::NoDaemon(_) => self.state_without_socket(),
            MpsError::Program(RunError::Late { .. }) => self.state_after_timeout(),
            error @ MpsError::Program(RunError::Start { .. }) => {
                DaemonState::NotAsked(error.to_string())
            }
            error => DaemonState::NoAnswer(error.to_string()),
        }
    }

    fn state_after_timeout(&mut self) -> DaemonState {
        if self.is_gone(EXIT_GRACE) {
            DaemonState::Dead
        } else if self.has_starting_server() {
            self.list_clients();
            DaemonState::Starting
        } else if self.is_busy() == Some(false) {
            let limit = self.limit.as_secs();
            DaemonState::NoAnswer(format!("it did not answer within {limit} s"))
        } else {
            self.hung_state()
        }
    }

    fn state_without_socket(&self) -> DaemonState {
        let finished = self.served.record.finished;
        let limit = if finished { EXIT_TIMEOUT } else { EXIT_GRACE };
        if self.is_gone(limit) {
            DaemonState::Dead
        } else if !finished {
            // A daemon takes its lock before it listens.
            DaemonState::Starting
        } else if self.context.is_unreachable(self.served) {
            // Its directory was removed meanwhile.
            DaemonState::Orphan
        } else {
            DaemonState::NoAnswer("no program reaches it by its socket".to_owned())
        }
    }

    /// Finds the clients of a joint device that a GPU fault has not reached: they use other GPUs.
    fn find_unaffected_clients(&mut self) {
        if !self.served.record.key.is_joint() {
            return;
        }
        let Some(logs) = self.logs.as_ref() else {
            return;
        };
        let log = logs.end_of(LogFile::Server, LOG_END_BYTES);
        let victims: Option<Vec<Vec<Pid>>> = self
            .served
            .servers
            .iter()
            .map(|server| logged_fault_victims(&log, server.pid))
            .collect();
        let Some(victims) = victims.map(|victims| victims.concat()) else {
            return;
        };
        self.served.unaffected = self
            .served
            .clients
            .as_slice()
            .iter()
            .filter_map(|client| client.pid)
            .filter(|pid| !victims.contains(pid))
            .collect();
    }

    /// Returns the state by the daemon's answer, and lists its servers and clients.
    fn state_by_answer(&mut self, answer: &DaemonStatus) -> DaemonState {
        let servers = &answer.servers;
        self.served.answered.clone_from(&answer.defaults);
        self.list_servers(servers.iter().map(|server| server.pid));
        let mut clients: Vec<Client> = Vec::new();
        for server in servers {
            let pids = server.clients.iter();
            clients.extend(pids.map(|&pid| self.describe_client(pid, Some(server.pid))));
        }
        self.served.clients = if servers.iter().all(|server| server.state.is_some()) {
            Clients::Known(clients)
        } else {
            Clients::Partial(clients)
        };
        let has_server = |state| servers.iter().any(|server| server.state == Some(state));
        let record = &self.served.record;
        // A change of settings leaves the record unfinished for a moment, during which the server goes on.
        if record.daemon.is_none() {
            DaemonState::Starting
        } else if has_server(ServerState::Fault) {
            self.find_unaffected_clients();
            DaemonState::Fault
        } else if has_server(ServerState::Active) {
            DaemonState::Ready
        } else if servers.is_empty() && record.finished {
            DaemonState::NoServerYet
        } else if !servers.is_empty() && servers.iter().all(|server| self.is_overdue(server.pid)) {
            DaemonState::Hung("its server did not become ready".to_owned())
        } else {
            DaemonState::Starting
        }
    }
}

/// True if an answer stays valid until something else changes. A server that starts gives no sign when it is ready.
fn stays_valid(answer: &DaemonStatus) -> bool {
    let lasting = [Some(ServerState::Active), Some(ServerState::Fault)];
    answer
        .servers
        .iter()
        .all(|server| lasting.contains(&server.state))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::StartTime;
    use std::time::SystemTime;

    fn seen(processes: &[u32]) -> VisibleSigns {
        let process = |pid: &u32| (Pid(*pid), StartTime(1));
        VisibleSigns {
            processes: processes.iter().map(process).collect(),
            compute: None,
            clients: None,
            log: (0, SystemTime::UNIX_EPOCH),
            waiting: Vec::new(),
            recorded: None,
        }
    }

    #[test]
    fn an_answer_counts_for_half_a_minute_and_a_hang_until_something_changes() {
        let at = Instant::now();
        let counts = |answer: Option<DaemonStatus>, seconds: u64, processes: &[u32]| {
            let last = RememberedAnswer {
                at,
                seen: seen(&[7]),
                answer,
            };
            let now = at + Duration::from_secs(seconds);
            last.while_current(Some(&seen(processes)), now).is_some()
        };
        let answer = || Some(DaemonStatus::default());
        assert!(counts(answer(), 29, &[7]));
        assert!(!counts(answer(), 30, &[7]));
        assert!(!counts(answer(), 0, &[7, 8]));
        assert!(counts(None, 3600, &[7]));
        assert!(!counts(None, 0, &[8]));
    }
}
