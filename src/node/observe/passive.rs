//! Finds out the state of a daemon without a control session.

use std::time::Duration;

use super::probe::Probe;
use crate::host::{Pid, Process};
use crate::mps::{LogDir, LogFile};
use crate::node::client::Clients;
use crate::node::served::{DaemonState, Served};
use crate::nvml::Usage;

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

impl Probe<'_> {
    /// Fills in the state of the daemon from NVML and `/proc`; returns false if it must be asked.
    ///
    /// A fault lasts hardly longer than the clients that met it, so a server that has long had a context and no
    /// clients is ready. A daemon must be asked if NVML does not list its server yet, if the server has clients, or if
    /// one has just arrived or left.
    pub(super) fn fill_in_passively(
        self,
        served: &mut Served,
        daemon: Pid,
        logs: Option<&LogDir>,
    ) -> bool {
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
        served.state = match children.as_slice() {
            [] if processes.compute.is_empty() => DaemonState::NoServerYet,
            [only]
                if is_running(only)
                    && self.has_context(only.pid)
                    && is_proven(served, only, logs) =>
            {
                DaemonState::Ready
            }
            _ => return false,
        };
        served.clients = Clients::Known(Vec::new());
        served.servers = children
            .iter()
            .map(|child| self.server(child.pid))
            .collect();
        true
    }

    /// Fills in the state of a daemon that hangs.
    pub(super) fn fill_in_hung(self, served: &mut Served, daemon: Pid) {
        served.state = DaemonState::Hung;
        self.fill_in_processes(served, daemon);
    }

    /// Fills in the state of a user's daemon, with which root opens no session. Its faults are taken from its log.
    pub(super) fn fill_in_unasked(self, served: &mut Served, daemon: Pid, logs: Option<&LogDir>) {
        self.fill_in_processes(served, daemon);
        if self.processes.is_none() {
            // Without the driver's lists its clients are unknown.
            served.state = DaemonState::Hidden;
            return;
        }
        let servers = self.servers(daemon);
        served.state = if !served.record.finished || !self.daemon(served).has_socket() {
            DaemonState::Starting
        } else if self.is_busy(daemon) == Some(true) && !self.starts_a_server(daemon) {
            DaemonState::Hung
        } else if servers.is_empty() {
            DaemonState::NoServerYet
        } else if !servers.iter().all(|server| self.has_context(server.pid)) {
            DaemonState::Starting
        } else if servers
            .iter()
            .any(|server| logs.is_some_and(|logs| logs.has_fault(server.pid)))
        {
            DaemonState::Fault
        } else {
            DaemonState::Ready
        };
    }

    fn fill_in_processes(self, served: &mut Served, daemon: Pid) {
        let servers = self.servers(daemon);
        let first = servers.first().map(|server| server.pid);
        served.servers = servers
            .iter()
            .map(|server| self.server(server.pid))
            .collect();
        let client = |usage: &Usage| {
            let pid = Some(Pid(usage.pid)).filter(|pid| pid.0 != 0);
            self.client(pid, first)
        };
        served.clients = match self.processes {
            Some(processes) => Clients::Known(processes.clients.iter().map(client).collect()),
            None => Clients::Partial(Vec::new()),
        };
    }
}

/// True if a server that NVML lists without clients is ready: `up` found it so, or it is old, and nothing has
/// happened since that may still occupy it.
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
