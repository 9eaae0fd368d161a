use std::collections::BTreeMap;
use std::time::SystemTime;

use super::Served;
use crate::host::{Pid, Process, StartTime};
use crate::mps::{DaemonStatus, LogDir, LogFile, ServerState};
use crate::nvml::{Processes, Usage};

/// What daemons answered when they were last asked, by their devices' UUIDs.
pub(super) type Answers = BTreeMap<String, Remembered>;

/// An answer, and all that could be seen without asking when it was given: while that stays as it is, so does
/// the answer.
#[derive(Clone, Debug)]
pub(super) struct Remembered {
    pub(super) seen: Seen,
    /// What it said; `None` if it hung.
    pub(super) glance: Option<DaemonStatus>,
}

/// What can be seen of a daemon without a control session.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    processes: Vec<(Pid, StartTime)>,
    compute: Option<Vec<u32>>,
    clients: Option<Vec<u32>>,
    /// How long its server.log is, and when it was last written: every fault, and every client that comes or
    /// goes, adds to it, and control sessions do not.
    log: (u64, SystemTime),
    /// When its record was written: `set` and `up` change what it answers.
    recorded: Option<SystemTime>,
}

impl Seen {
    /// `None` if the log cannot be read: a fault would stay unseen.
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

/// Whether an answer can be relied on until something else is seen. A server that starts says nothing when it
/// is ready.
pub(super) fn lasts(glance: &DaemonStatus) -> bool {
    let lasting = [Some(ServerState::Active), Some(ServerState::Fault)];
    let mut servers = glance.servers.iter();
    servers.all(|server| lasting.contains(&server.state))
}
