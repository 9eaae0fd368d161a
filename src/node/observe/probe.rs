use std::path::Path;

use super::remembered::Remembered;
use crate::host::{Host, MpsPrograms, Pid, Process, ProcessTable};
use crate::mps::{ControlProgram, Daemon, servers_of};
use crate::node::client::{Client, ServerProcess};
use crate::node::served::Served;
use crate::nvml::{Processes, Usage};

/// The state of changes of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changing {
    Yes,
    No,
    /// The caller may not know.
    Hidden,
}

/// Everything that is needed to find out the state of one daemon.
#[derive(Clone, Copy)]
pub(super) struct Probe<'a> {
    pub(super) changing: Changing,
    /// True if the caller may open a control session with the daemon.
    pub(super) may_ask: bool,
    pub(super) program: ControlProgram,
    pub(super) host: &'a Host,
    pub(super) table: &'a ProcessTable,
    pub(super) boot_id: &'a str,
    /// The processes on the device; `None` if hidden.
    pub(super) processes: Option<&'a Processes>,
    pub(super) programs: Option<&'a MpsPrograms>,
    /// The daemon's last answer, if it may be used again.
    pub(super) answer: Option<&'a Remembered>,
    /// True if the daemon is also asked for its defaults for servers.
    pub(super) with_defaults: bool,
}

impl<'a> Probe<'a> {
    pub(super) fn daemon(self, served: &Served) -> Daemon {
        self.daemon_with_logs(served, Path::new(""))
    }

    pub(super) fn daemon_with_logs(self, served: &Served, log_dir: &Path) -> Daemon {
        let pipe = served.run_dir.pipe_dir(&served.record.uuid);
        Daemon::new(
            self.programs.cloned().unwrap_or_default(),
            self.program,
            pipe,
            log_dir.to_owned(),
        )
    }

    /// Returns the server processes of the daemon.
    pub(super) fn servers(self, daemon: Pid) -> Vec<&'a Process> {
        let daemon = self.table.get(daemon).into_iter();
        daemon
            .flat_map(|daemon| servers_of(self.table, daemon))
            .collect()
    }

    pub(super) fn server(self, pid: Pid) -> ServerProcess {
        ServerProcess {
            pid,
            user: self.host.process(pid).and_then(|process| process.owner()),
        }
    }

    /// Describes a client. Its pid is `None` if it cannot be seen from here.
    pub(super) fn client(self, pid: Option<Pid>, server: Option<Pid>) -> Client {
        let process = pid.and_then(|pid| self.host.process(pid));
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
    pub(super) fn usages(self) -> impl Iterator<Item = &'a Usage> {
        let processes = self.processes.into_iter();
        processes.flat_map(|processes| processes.clients.iter().chain(&processes.compute))
    }

    /// True if NVML lists the process among those that compute.
    pub(super) fn has_context(self, pid: Pid) -> bool {
        let mut processes = self.processes.into_iter();
        processes.any(|processes| processes.compute.iter().any(|usage| usage.pid == pid.0))
    }
}
