//! Settings of daemons that go on running.

use super::done::Done;
use super::gpu::GpuRun;
use super::{Cause, Shared};
use crate::plan::Set;
use crate::settings::Settings;
use crate::state::DeviceRecord;

impl GpuRun<'_> {
    /// Changes settings. What was begun is remembered: a change that fails half-way is undone too.
    pub(super) fn set(&self, set: &Set) -> Result<(), Cause> {
        let served = self.shared.served(&set.uuid).ok_or(Cause::NoDevice)?;
        let before = &served.record;
        let after = DeviceRecord {
            settings: set.settings.clone(),
            by_hand: set.by_hand.clone(),
            ..before.clone()
        };
        self.history.did(Done::Set {
            before: Box::new(before.clone()),
            after: Box::new(after.clone()),
        });
        // Somebody may have told the daemon something else than what is recorded.
        let answered = served.answered.as_ref();
        let was = answered.map(|answered| answered.over(&before.settings));
        self.shared
            .change(&after, was.as_ref().unwrap_or(&before.settings))
    }
}

impl Shared<'_> {
    /// Brings a running daemon to what a record says. Until that has been read back the record is
    /// unfinished: a run that is killed here is gone on with.
    pub(super) fn change(&self, shall: &DeviceRecord, was: &Settings) -> Result<(), Cause> {
        let unfinished = DeviceRecord {
            finished: false,
            ..shall.clone()
        };
        self.run_dir.write_record(&unfinished)?;
        self.daemon(shall).set(&shall.settings, was)?;
        Ok(self.run_dir.write_record(shall)?)
    }
}
