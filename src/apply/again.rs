//! Daemons that are to be started again as they were: their records stay until they serve.

use super::{Cause, Shared};
use crate::mps::{Means, Patience};
use crate::plan::{Action, GpuPlan, Step};
use crate::state::DeviceRecord;

/// Whether the plan has a daemon started as its record says.
pub(super) fn starts_again(plan: &GpuPlan, record: &DeviceRecord) -> bool {
    let is_it = |step: &Step| matches!(&step.action, Action::Start(start) if start.again && start.name == record.name);
    plan.steps.iter().any(is_it)
}

impl Shared<'_> {
    /// Ends a daemon. Where the plan has it started again as it was, its record stays.
    pub(super) fn end(
        &self,
        plan: &GpuPlan,
        record: &DeviceRecord,
        how: (Patience, Means),
        alone: bool,
    ) -> Result<(), Cause> {
        if starts_again(plan, record) {
            self.end_for_now(record, how, alone)
        } else {
            self.end_daemon(record, how, alone)
        }
    }

    /// Ends a daemon whose record stays, and says then that it has none. So does its pipe directory: the next daemon
    /// clears out what this one leaves there, and what its user has put there is in nobody's way.
    fn end_for_now(
        &self,
        record: &DeviceRecord,
        how: (Patience, Means),
        alone: bool,
    ) -> Result<(), Cause> {
        self.end_process(record, how, alone)?;
        self.give_mode_back(record)?;
        self.write_without_daemon(record)
    }

    /// Sees to it that a device whose daemon did not start has a record: starting it can be tried again.
    pub(super) fn keep_record(&self, record: &DeviceRecord) -> Result<(), Cause> {
        if self.run_dir.has_record(&record.uuid) {
            return Ok(());
        }
        self.write_without_daemon(record)
    }

    fn write_without_daemon(&self, record: &DeviceRecord) -> Result<(), Cause> {
        Ok(self.run_dir.write_record(&DeviceRecord {
            daemon: None,
            finished: false,
            compute_mode_before: None,
            ..record.clone()
        })?)
    }
}
