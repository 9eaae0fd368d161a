//! Stops a daemon, and removes what was made for it.

use std::time::{Duration, Instant};

use super::cause::Cause;
use super::mutex::lock;
use super::owner::owner;
use super::shared::Shared;
use crate::mps::{Daemon, Means, Patience};
use crate::nvml::Session;
use crate::plan::{EndStray, GpuPlan};
use crate::state::{DeviceRecord, is_full};

/// True if the plan starts the daemon of a record again, unchanged.
pub(super) fn starts_again(plan: &GpuPlan, record: &DeviceRecord) -> bool {
    let mut starts = plan.steps.iter().filter_map(|step| step.action.as_start());
    starts.any(|start| start.by.keeps_record() && start.name == record.name)
}

impl Shared<'_> {
    /// Ends a server that has outlived its daemon.
    pub(super) fn end_stray(&self, stray: &EndStray) -> Result<(), Cause> {
        let host = &self.context.environment.host;
        let daemon = self.daemon_of(&stray.uuid);
        Ok(daemon.kill_server(host, stray.server)?)
    }

    /// Stops a daemon. If the plan starts it again unchanged, its record stays, without the process, and its pipe
    /// directory too: the next daemon clears what this one leaves there.
    pub(super) fn end(
        &self,
        plan: &GpuPlan,
        record: &DeviceRecord,
        how: (Patience, Means),
        alone: bool,
    ) -> Result<(), Cause> {
        if !starts_again(plan, record) {
            return self.end_daemon(record, how, alone);
        }
        self.end_process(record, how, alone)?;
        self.give_mode_back(record)?;
        self.write_without_daemon(record)
    }

    /// Makes sure that a device whose daemon did not start has a record, so that the start can be retried.
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

    /// Stops a daemon if it runs, and removes what was made for it except its logs.
    ///
    /// With `alone`, waits until no other daemon is being stopped.
    pub(super) fn end_daemon(
        &self,
        record: &DeviceRecord,
        how: (Patience, Means),
        alone: bool,
    ) -> Result<(), Cause> {
        let has_record = matches!(self.run_dir.record(&record.uuid), Ok(Some(_)));
        let is_marked = has_record && self.mark_leaving(record)?;
        if let Err(cause) = self.end_process(record, how, alone) {
            let written = if is_marked {
                self.run_dir.write_record(record)
            } else {
                Ok(())
            };
            return Err(cause.and(written.map_err(Cause::from)));
        }
        self.clear_away(&self.daemon(record), record)
    }

    /// Records that a daemon leaves; returns false where the disk is full, which does not keep it.
    fn mark_leaving(&self, record: &DeviceRecord) -> Result<bool, Cause> {
        let marked = self.run_dir.write_record(&DeviceRecord {
            leaving: true,
            ..record.clone()
        });
        match marked {
            Err(error) if is_full(&error) => Ok(false),
            marked => Ok(marked.map(|()| true)?),
        }
    }

    /// Stops a daemon's process if it runs, and every other process that serves in its directory.
    pub(super) fn end_process(
        &self,
        record: &DeviceRecord,
        (patience, means): (Patience, Means),
        alone: bool,
    ) -> Result<(), Cause> {
        if record.boot_id != self.context.node.boot_id {
            return Ok(());
        }
        let host = &self.context.environment.host;
        let daemon = self.daemon(record);
        if record.daemon.is_some_and(|id| id.is_hidden(host)) {
            return Err(Cause::Other(format!(
                "the daemon of {} cannot be seen from here: it may run in another pid namespace",
                record.name
            )));
        }
        let running = record.daemon.and_then(|id| id.running(host));
        if let Some(process) = running {
            if let (Patience::Force(seconds), Means::Signals | Means::Heal) = (patience, means)
                && patience != Patience::AT_ONCE
            {
                self.wait_for_clients(&record.uuid, Duration::from_secs(seconds.into()));
            }
            let _alone = alone.then(|| lock(&self.stopping));
            // This ends the servers in the directory too; a healed daemon stays.
            return Ok(daemon.stop(host, (process.pid, process.started), patience, means)?);
        }
        // An interrupted start may have left a daemon that it did not record.
        let spares_clients = patience == Patience::Idle;
        Ok(daemon.end_unrecorded(host, owner(record)?, spares_clients)?)
    }

    /// Waits until the driver lists no clients on a device, or the time is over. The daemon still admits new ones.
    fn wait_for_clients(&self, uuid: &str, limit: Duration) {
        const INTERVAL: Duration = Duration::from_millis(200);
        let interrupt = &self.context.environment.interrupt;
        let begun = Instant::now();
        loop {
            let read = self.nvml_on(uuid, Session::read_processes);
            let is_idle = read.is_ok_and(|processes| processes.clients.is_empty());
            if is_idle || begun.elapsed() >= limit || !interrupt.pause(INTERVAL) {
                return;
            }
        }
    }

    pub(super) fn clear_away(&self, daemon: &Daemon, record: &DeviceRecord) -> Result<(), Cause> {
        self.give_mode_back(record)?;
        daemon.remove_pipe_dir()?;
        Ok(self.run_dir.remove_record(record)?)
    }
}
