//! Finds out the state of a daemon without a control session.

use std::time::Duration;

use super::probe::Probe;
use crate::host::{Pid, Process};
use crate::mps::{LogFile, pending};
use crate::node::{Clients, DaemonState};
use crate::nvml::Usage;
use crate::settings::Serve;

/// The age at which a server counts as ready because NVML lists it: 200 times its start on an H200. NVML lists it as
/// soon as it has its context.
const PROVEN: Duration = Duration::from_secs(60);

/// Time without new lines in the server's log: it recovers from a fault within about a second after its clients have
/// exited, and NVML lists no clients meanwhile.
const QUIET: Duration = Duration::from_secs(5);

/// Delay after which the last line about a server that `up` found ready may be written: its daemon writes that log.
const LOG_DELAY: Duration = Duration::from_secs(1);

/// The precision of a process's age: the kernel reports it, and the time since boot, in hundredths of a second.
const TICK: Duration = Duration::from_millis(10);

/// The bytes that are read from the end of a daemon's log: half a day of a program that asks every ten seconds.
const LOG_END: u64 = 1 << 20;

impl Probe<'_> {
    /// Fills in the state of the daemon from NVML and `/proc`; returns false if it must be asked.
    ///
    /// A fault lasts hardly longer than the clients that met it, so a server that has long had a context and no
    /// clients is ready. A daemon must be asked if NVML does not list its server yet, if the server has clients, or if
    /// one has just arrived or left.
    pub(super) fn fill_in_passively(&mut self) -> bool {
        let Some(processes) = self.processes.filter(|_| self.served.record.finished) else {
            return false;
        };
        let is_running = |process: &Process| !process.is_stopped && !process.is_ending;
        if !processes.clients.is_empty()
            || !self.process().is_some_and(is_running)
            || !self.context.mps(self.served, None).has_socket()
            || self.is_busy() != Some(false)
        {
            return false;
        }
        let servers = self.servers();
        self.served.state = match servers.as_slice() {
            [] if processes.compute.is_empty() => DaemonState::NoServerYet,
            [only] if is_running(only) && self.has_context(only.pid) && self.is_proven(only) => {
                DaemonState::Ready
            }
            _ => return false,
        };
        self.served.clients = Clients::Known(Vec::new());
        self.fill_in_servers(servers.iter().map(|server| server.pid));
        true
    }

    /// True if a server that NVML lists without clients is ready: `up` found it so, or it is old, and nothing has
    /// happened since that may still occupy it.
    fn is_proven(&self, only: &Process) -> bool {
        let recorded = self.served.run_dir.recorded_at(&self.served.record.uuid);
        let recorded = recorded.and_then(|at| at.elapsed().ok());
        let Some(age) = only.age() else {
            return false;
        };
        if age < PROVEN && recorded.is_none_or(|recorded| age + TICK < recorded) {
            return false;
        }
        let logs = self.logs.as_ref();
        let written = logs.and_then(|logs| logs.mark(LogFile::Server)?.1.elapsed().ok());
        written.is_none_or(|written| {
            written > QUIET || recorded.is_some_and(|recorded| recorded < written + LOG_DELAY)
        })
    }

    /// Fills in the state of a daemon that hangs.
    pub(super) fn fill_in_hung(&mut self) {
        self.served.state = DaemonState::Hung;
        self.fill_in_processes();
    }

    /// Fills in the state of a user's daemon, with which root opens no session. Its faults are taken from its log.
    pub(super) fn fill_in_unasked(&mut self) {
        self.fill_in_processes();
        if self.processes.is_none() {
            // Without the driver's lists its clients are unknown.
            self.served.state = DaemonState::Hidden;
            return;
        }
        let servers = self.servers();
        let has_fault = |server: &&Process| {
            let logs = self.logs.as_ref();
            logs.is_some_and(|logs| logs.has_fault(server.pid))
        };
        let has_socket = || self.context.mps(self.served, None).has_socket();
        self.served.state = if !self.served.record.finished || !has_socket() {
            DaemonState::Starting
        } else if self.is_busy() == Some(true) && !self.starts_a_server() {
            DaemonState::Hung
        } else if servers.is_empty() {
            DaemonState::NoServerYet
        } else if !servers.iter().all(|server| self.has_context(server.pid)) {
            DaemonState::Starting
        } else if servers.iter().any(has_fault) {
            DaemonState::Fault
        } else {
            DaemonState::Ready
        };
    }

    /// Fills in servers and clients from `/proc` and NVML.
    pub(super) fn fill_in_processes(&mut self) {
        let servers = self.servers();
        self.fill_in_servers(servers.iter().map(|server| server.pid));
        let first = servers.first().map(|server| server.pid);
        let client = |usage: &Usage| {
            let pid = Some(Pid(usage.pid)).filter(|pid| pid.0 != 0);
            self.client(pid, first)
        };
        self.served.clients = match self.processes {
            Some(processes) => Clients::Known(processes.clients.iter().map(client).collect()),
            None => Clients::Partial(Vec::new()),
        };
    }

    /// Finds the programs that wait in `cuInit` because another user's are served. Only the daemon's log names them.
    /// With `serve = "all"` nobody waits.
    pub(super) fn find_waiting(&mut self) {
        let served = &self.served;
        let is_occupied =
            !served.clients.listed().is_empty() || served.state == DaemonState::Starting;
        if !is_occupied || served.record.settings.serve == Some(Serve::All) {
            return;
        }
        // Includes a log that was rotated a moment ago.
        let logs = self.logs.as_ref();
        let log = logs.map_or_else(String::new, |logs| logs.end_of(LogFile::Control, LOG_END));
        let computes = |pid: Pid| self.usages().any(|usage| usage.pid == pid.0);
        let waiting = pending(&log)
            .into_iter()
            .filter(|(pid, _)| !served.clients.have(*pid) && !computes(*pid))
            .map(|(pid, user)| (self.client(Some(pid), None), user))
            // Another process may have the pid by now.
            .filter(|(client, user)| client.user == Some(*user))
            .map(|(client, _)| client)
            .collect();
        self.served.waiting = waiting;
    }
}
