//! Settings of running daemons, and the compute mode of their GPUs.

use super::cause::Cause;
use super::effect::Effect;
use super::gpu::GpuRun;
use super::shared::Shared;
use crate::nvml::{EXCLUSIVE_PROCESS, Session};
use crate::plan::Set;
use crate::settings::Settings;
use crate::state::{DeviceRecord, is_full};

impl GpuRun<'_> {
    /// Changes settings. Recorded before it begins: a change that fails half-way is undone too.
    pub(super) fn set(&self, set: &Set) -> Result<(), Cause> {
        let served = self.shared.served(&set.uuid).ok_or(Cause::NoDevice)?;
        let before = &served.record;
        let after = DeviceRecord {
            settings: set.settings.clone(),
            by_hand: set.by_hand.clone(),
            ..before.clone()
        };
        self.history.did(Effect::Set {
            before: Box::new(before.clone()),
            after: Box::new(after.clone()),
        });
        // Somebody may have changed the daemon behind our back.
        let answered = served.answered.as_ref();
        let was = answered.map(|answered| answered.over(&before.settings));
        self.shared
            .change(&after, was.as_ref().unwrap_or(&before.settings))
    }
}

impl Shared<'_> {
    /// Gives a running daemon the settings of a record. The record is unfinished until they read back, so that the
    /// next run completes a killed one.
    pub(super) fn change(&self, wanted: &DeviceRecord, was: &Settings) -> Result<(), Cause> {
        let unfinished = DeviceRecord {
            finished: false,
            ..wanted.clone()
        };
        self.run_dir.write_record(&unfinished)?;
        self.finish_change(wanted, was)
    }

    /// Gives a running daemon its former settings, also where the disk is full: then only the record fails.
    pub(super) fn change_back(&self, before: &DeviceRecord, was: &Settings) -> Result<(), Cause> {
        match self.change(before, was) {
            Err(Cause::File(error)) if is_full(&error) => self.finish_change(before, was),
            changed => changed,
        }
    }

    fn finish_change(&self, wanted: &DeviceRecord, was: &Settings) -> Result<(), Cause> {
        self.daemon(wanted).set(&wanted.settings, was)?;
        Ok(self.run_dir.write_record(wanted)?)
    }

    /// Sets the compute mode that a daemon needs. Records the old one first, so that a killed run leaves it
    /// known.
    pub(super) fn hold_mode(&self, record: &mut DeviceRecord) -> Result<(), Cause> {
        if record.settings.compute_mode.is_none() {
            self.give_mode_back(record)?;
            record.compute_mode_before = None;
            return Ok(());
        }
        let is = self.nvml_on(&record.key.gpu, Session::compute_mode)?;
        if is == EXCLUSIVE_PROCESS {
            return Ok(());
        }
        record.compute_mode_before = Some(is);
        self.run_dir.write_record(record)?;
        self.set_mode(record, EXCLUSIVE_PROCESS)
    }

    /// Restores the compute mode from before a daemon, unless somebody has changed it since.
    pub(super) fn give_mode_back(&self, record: &DeviceRecord) -> Result<(), Cause> {
        let is_of_this_boot = record.boot_id == self.context.node.boot_id;
        let Some(before) = record.compute_mode_before.filter(|_| is_of_this_boot) else {
            return Ok(());
        };
        if self.context.node.gpu(&record.key.gpu).is_none() {
            return Ok(());
        }
        let is = self.nvml_on(&record.key.gpu, Session::compute_mode)?;
        if is != EXCLUSIVE_PROCESS {
            return Ok(());
        }
        self.set_mode(record, before)
    }

    fn set_mode(&self, record: &DeviceRecord, wanted: u32) -> Result<(), Cause> {
        let found = self.nvml_on(&record.key.gpu, move |nvml, gpu| {
            nvml.set_compute_mode(gpu, wanted)
        })?;
        if found == wanted {
            return Ok(());
        }
        Err(Cause::Other(format!(
            "the compute mode was set to {wanted} and reads back as {found} (NVML's numbers)"
        )))
    }
}
