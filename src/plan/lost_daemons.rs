//! Daemons of the run directory that run without a record: it was removed, or cannot be read.

use super::Stop;
use super::device::DevicePlan;
use super::preconditions::unknown_clients_problem;
use super::up::Planner;
use crate::failure::Problem;
use crate::host::Pid;
use crate::mps::StopMethod;
use crate::node::{DaemonState, Served};
use crate::profile::Want;

/// The hint for a daemon that has lost its record.
pub(super) const UP_AGAIN: &str =
    "run `mig-mps up --force` with the same profile to start another daemon";

/// The reason to stop a daemon for a device with one of its GPUs.
pub(super) const LOST_RECORD: &str = "its record is missing or cannot be read";

impl<'a> Planner<'a> {
    /// Returns the daemon of a device that has lost its record and its pipe directory. One that lost the record alone is
    /// taken over.
    pub(super) fn lost_daemon_of(self, device: &DevicePlan) -> Option<&'a Served> {
        self.lost_daemons().find(|lost| {
            let has_uuid = device.uuid.as_ref() == Some(&lost.record.uuid);
            has_uuid && lost.state == DaemonState::Orphan
        })
    }

    /// Returns the daemons whose first GPU is this one, and which would serve a GPU beside the daemons that the profile wants:
    /// a joint device is there, or wanted.
    pub(super) fn lost_daemons_beside(
        self,
        gpu: &str,
        wanted: &[DevicePlan],
    ) -> impl Iterator<Item = &'a Served> {
        let seen = self.node.gpu_with_uuid(gpu);
        let block = seen.and_then(|gpu| self.block_of(gpu));
        let is_joint = block.is_some_and(|block| {
            let want = &self.profile.blocks[block].want;
            matches!(want, Want::Whole(whole) if whole.is_joint)
        });
        self.lost_daemons().filter(move |lost| {
            let (key, uuid) = (&lost.record.key, &lost.record.uuid);
            let is_wanted = |device: &DevicePlan| device.uuid.as_ref() == Some(uuid);
            key.gpu == gpu && (key.is_joint() || is_joint) && !wanted.iter().any(is_wanted)
        })
    }

    /// True if a process is such a daemon.
    pub(super) fn is_lost_daemon(self, pid: Pid) -> bool {
        self.lost_daemons()
            .filter_map(|lost| lost.record.daemon)
            .any(|daemon| daemon.pid == pid)
    }

    pub(super) fn lost_daemons(self) -> impl Iterator<Item = &'a Served> {
        self.node
            .lost_records
            .iter()
            .filter(move |lost| lost.run_dir == *self.run_dir && lost.is_alive())
    }
}

impl Stop {
    /// Stops a daemon without a record, which cannot be asked for its clients. `hint` is the remedy.
    pub(super) fn from_lost(lost: &Served, hint: &str) -> Self {
        let what = match unknown_clients_problem(lost) {
            Some(problem) if lost.state == DaemonState::Orphan => problem.what,
            _ => format!(
                "the daemon of device {} cannot be asked for its clients: {LOST_RECORD}",
                lost.record.name
            ),
        };
        Self {
            means: StopMethod::Signals,
            // A restart needs the record.
            unasked: Some(Problem::new(what, hint)),
            ..Self::from_served(lost)
        }
    }
}
