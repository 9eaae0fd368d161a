use std::collections::BTreeMap;
use std::time::SystemTime;

use crate::host::{Pid, Process, StartTime};
use crate::mps::{DaemonStatus, LogDir, LogFile, ServerState};
use crate::node::served::Served;
use crate::nvml::{Processes, Usage};

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
    processes: Vec<(Pid, StartTime)>,
    compute: Option<Vec<u32>>,
    clients: Option<Vec<u32>>,
    /// The length of its server.log, and the time of its last line: every fault, and every client that arrives or
    /// leaves, adds a line, and control sessions do not.
    log: (u64, SystemTime),
    /// The time of its record: `set` and `up` change the answers.
    recorded: Option<SystemTime>,
}

impl Seen {
    /// Returns `None` if the log cannot be read: a fault would stay unseen.
    pub(super) fn of(
        served: &Served,
        daemon: &Process,
        children: &[&Process],
        processes: Option<&Processes>,
        logs: Option<&LogDir>,
    ) -> Option<Self> {
        let pids = |usages: &[Usage]| {
            let mut pids: Vec<u32> = usages.iter().map(|usage| usage.pid).collect();
            pids.sort_unstable();
            pids
        };
        Some(Self {
            processes: std::iter::once(&daemon)
                .chain(children)
                .map(|process| (process.pid, process.started))
                .collect(),
            compute: processes.map(|processes| pids(&processes.compute)),
            clients: processes.map(|processes| pids(&processes.clients)),
            log: logs?.mark(LogFile::Server)?,
            recorded: served.run_dir.recorded_at(&served.record.uuid),
        })
    }
}

/// True if an answer stays valid until something else changes. A server that starts gives no sign when it is ready.
pub(super) fn lasts(glance: &DaemonStatus) -> bool {
    let lasting = [Some(ServerState::Active), Some(ServerState::Fault)];
    let mut servers = glance.servers.iter();
    servers.all(|server| lasting.contains(&server.state))
}
