//! Finds out whether daemons run.

use std::path::PathBuf;
use std::time::Duration;

use super::probe::{Changing, Probe};
use crate::host::{Pid, Uid, caller};
use crate::mps::{LockHolder, is_daemon};
use crate::node::served::{DaemonState, Served};

/// Time that a process whose pipe directory is gone gets to exit, before it is called an orphan.
pub(super) const EXIT_GRACE: Duration = Duration::from_millis(50);

impl Probe<'_> {
    /// Sets the state of the recorded daemon as far as its process tells it; returns the pid if more can be found out.
    /// Only the recorded process counts: in a user's directory the user may hold any lock.
    pub(super) fn check_process(self, served: &mut Served) -> Option<Pid> {
        let record = &served.record;
        if record.boot_id != self.boot_id {
            return None;
        }
        let Some(id) = record.daemon else {
            return self.check_unrecorded(served);
        };
        if id.is_hidden(self.host) {
            served.state = DaemonState::Hidden;
            return None;
        }
        id.running(self.host)?;
        if self.is_unreachable(served) {
            let held = self.host.open_process(id.pid, id.start_time);
            // A process closes its files before it exits.
            if held.is_some_and(|held| !held.ends_within(EXIT_GRACE)) {
                served.state = DaemonState::Orphan;
            }
            return None;
        }
        served.state = if served.record.finished {
            DaemonState::Hidden
        } else {
            DaemonState::Starting
        };
        Some(id.pid)
    }

    /// Handles a daemon that its start has not recorded yet.
    fn check_unrecorded(self, served: &mut Served) -> Option<Pid> {
        let holder = match self.daemon(served).lock_holder() {
            LockHolder::Process(pid) => self.host.process(pid).filter(is_daemon),
            LockHolder::Unseen | LockHolder::Hidden => {
                served.state = DaemonState::Hidden;
                return None;
            }
            LockHolder::Nobody => None,
        };
        if holder.is_some() || (self.changing == Changing::Yes && !served.record.finished) {
            served.state = DaemonState::Starting;
        } else if self.changing == Changing::Hidden && !served.record.finished {
            served.state = DaemonState::Hidden;
        }
        Some(holder?.pid)
    }

    /// True if the daemon's pipe directory is gone or was replaced.
    pub(super) fn is_unreachable(self, served: &Served) -> bool {
        self.daemon(served).lock_holder() == LockHolder::Nobody && !self.daemon(served).is_covered()
    }

    /// True if the daemon has exited, or does within this time.
    pub(super) fn is_gone(self, daemon: Pid, limit: Duration) -> bool {
        let process = self.host.process(daemon);
        let held = process.and_then(|process| self.host.open_process(daemon, process.started));
        held.is_none_or(|held| held.ends_within(limit))
    }

    /// Returns the log directory that the daemon was started with, or the default one. The environment of a user's
    /// daemon is not trusted.
    pub(super) fn log_dir(self, daemon: Pid, default: Option<PathBuf>) -> Option<PathBuf> {
        let process = self.table.get(daemon)?;
        let is_trusted = process
            .owner()
            .is_some_and(|owner| owner == Uid::ROOT || owner == caller());
        let configured = process.environment("CUDA_MPS_LOG_DIRECTORY");
        let configured = configured.filter(|_| is_trusted);
        configured.map(PathBuf::from).or(default)
    }
}
