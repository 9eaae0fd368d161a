//! A daemon that is being examined, and what is known about it already.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::detail::Detail;
use crate::host::{Host, MpsPrograms, Pid, Process, ProcessTable, StartTime};
use crate::mps::{ControlProgram, Daemon, DaemonStatus, LogDir, servers_of};
use crate::node::{Client, DaemonState, Served, ServerProcess};
use crate::nvml::{Processes, Usage};

/// The facts that the daemons of a snapshot have in common.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) detail: Detail,
    pub(super) program: ControlProgram,
    pub(super) programs: Option<&'a MpsPrograms>,
    pub(super) host: &'a Host,
    pub(super) table: &'a ProcessTable,
    pub(super) boot_id: &'a str,
    /// The state of a device whose start has neither finished nor recorded a daemon.
    pub(super) unfinished: DaemonState,
}

/// A recorded daemon that runs, and everything that is needed to find out its state.
pub(super) struct Probe<'a> {
    pub(super) context: Context<'a>,
    pub(super) served: &'a mut Served,
    pub(super) daemon: Pid,
    /// True if the caller may open a control session with the daemon.
    pub(super) may_ask: bool,
    /// The time that it may take to answer.
    pub(super) limit: Duration,
    /// The processes on the device; `None` if hidden.
    pub(super) processes: Option<&'a Processes>,
    pub(super) logs: Option<LogDir>,
    /// The daemon's last answer, if it may be used again.
    pub(super) answer: Option<&'a Remembered>,
}

/// The daemons' last answers, by the UUIDs of their devices.
pub(super) type Answers = BTreeMap<String, Remembered>;

/// An answer, and everything that could be seen without asking at that time. While that stays unchanged, so does the
/// answer.
#[derive(Clone, Debug)]
pub(super) struct Remembered {
    pub(super) seen: Seen,
    /// The answer; `None` if the daemon hung.
    pub(super) glance: Option<DaemonStatus>,
}

/// The signs of a daemon that are visible without a control session.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) processes: Vec<(Pid, StartTime)>,
    pub(super) compute: Option<Vec<u32>>,
    pub(super) clients: Option<Vec<u32>>,
    /// The length of its server.log, and the time of its last line: every fault, and every client that arrives or
    /// leaves, adds a line, and control sessions do not.
    pub(super) log: (u64, SystemTime),
    /// The time of its record: `set` and `up` change the answers.
    pub(super) recorded: Option<SystemTime>,
}

impl Context<'_> {
    pub(super) fn mps(self, served: &Served, logs: Option<&LogDir>) -> Daemon {
        Daemon::new(
            self.programs.cloned().unwrap_or_default(),
            self.program,
            served.run_dir.pipe_dir(&served.record.uuid),
            logs.map_or(PathBuf::new(), |logs| logs.path().to_owned()),
        )
        .serving(served.record.settings.serve.as_ref())
    }
}

impl Context<'_> {
    /// Fills in the servers from the process table, which has them whatever the daemon's state. A control session may
    /// tell more.
    pub(super) fn fill_in_servers(self, served: &mut Served, daemon: Option<Pid>) {
        let recorded = served.record.daemon.map(|daemon| daemon.pid);
        let orphan = recorded.filter(|_| served.state == DaemonState::Orphan);
        let process = daemon.or(orphan).and_then(|pid| self.table.get(pid));
        served.servers = process
            .into_iter()
            .flat_map(|daemon| servers_of(self.table, daemon))
            .map(ServerProcess::of)
            .collect();
    }
}

impl<'a> Probe<'a> {
    /// Returns the daemon's process, if it was seen.
    pub(super) fn process(&self) -> Option<&'a Process> {
        self.context.table.get(self.daemon)
    }

    /// Returns the server processes of the daemon.
    pub(super) fn servers(&self) -> Vec<&'a Process> {
        let daemon = self.process().into_iter();
        daemon
            .flat_map(|daemon| servers_of(self.context.table, daemon))
            .collect()
    }

    /// Fills in the servers, with their users.
    pub(super) fn fill_in_servers(&mut self, pids: impl IntoIterator<Item = Pid>) {
        let host = self.context.host;
        let server = |pid| ServerProcess {
            pid,
            user: host.process(pid).and_then(|process| process.owner()),
        };
        self.served.servers = pids.into_iter().map(server).collect();
    }

    /// Describes a client. Its pid is `None` if it cannot be seen from here.
    pub(super) fn client(&self, pid: Option<Pid>, server: Option<Pid>) -> Client {
        let process = pid.and_then(|pid| self.context.host.process(pid));
        let usage = self.usages().find(|usage| {
            // A process may be on both lists, and have its memory on one alone.
            Some(Pid(usage.pid)) == pid && usage.memory.is_some()
        });
        Client {
            pid,
            started: process.as_ref().map(|process| process.started),
            server,
            user: process.as_ref().and_then(Process::owner),
            command: process.as_ref().map(Process::command),
            memory: usage.and_then(|usage| usage.memory),
            age: process.as_ref().and_then(Process::age),
        }
    }

    /// Returns NVML's lists of clients and of processes that compute.
    pub(super) fn usages(&self) -> impl Iterator<Item = &'a Usage> {
        let processes = self.processes.into_iter();
        processes.flat_map(|processes| processes.clients.iter().chain(&processes.compute))
    }

    /// True if NVML lists the process among those that compute.
    pub(super) fn has_context(&self, pid: Pid) -> bool {
        let mut usages = self
            .processes
            .iter()
            .flat_map(|processes| &processes.compute);
        usages.any(|usage| usage.pid == pid.0)
    }
}
