//! Switches MIG mode, and waits until the change is active.

use super::cause::Cause;
use super::context::StepOf;
use super::gpu_state::ChangingGpu;
use super::in_use::Backoff;
use crate::catalog::{NoMig, explain_no_mig};
use crate::host::{Holders, Interrupt};
use crate::nvml::{Code, GpuHandle, MigMode, NvmlError};

impl ChangingGpu<'_> {
    /// Switches MIG mode, and returns once it is active.
    ///
    /// NVML returns SUCCESS for a change that is only pending: the activation status and the mode that reads back
    /// tell the difference.
    pub(super) fn switch_mig(&mut self, on: bool, step: Option<StepOf<'_>>) -> Result<(), Cause> {
        let (record, uuid) = (&self.shared.node_record, &self.plan.uuid);
        let was_ours = record.has_switched_on(uuid);
        let mut is_ours = on;
        if self.rolling_back {
            is_ours = record.had_switched_on(uuid);
            if self.is_switched_back(on)? {
                return Ok(record.record_switched_on(uuid, is_ours)?);
            }
        } else if self.mig == on {
            // Another change is pending: cancel it.
            self.set_mig_mode(on)?;
            if !on {
                record.record_switched_on(uuid, false)?;
            }
            return Ok(());
        }
        if is_ours {
            // Recorded first: what a crash leaves behind is then known as ours.
            record.record_switched_on(uuid, true)?;
        }
        let switched = self.try_to_switch(on, step);
        if self.mig != on {
            record.record_switched_on(uuid, was_ours)?;
        } else if switched.is_ok() {
            record.record_switched_on(uuid, is_ours)?;
        }
        switched
    }

    /// True if a rollback finds the mode that it wants, an error if it leaves the mode as it is.
    fn is_switched_back(&mut self, on: bool) -> Result<bool, Cause> {
        let mode = self.query_mig_mode()?;
        if mode.current == on {
            self.mig = on;
            return if mode.pending == on {
                Ok(true)
            } else {
                Err(Cause::Pending)
            };
        }
        // The former instances need the mode on, and an idle GPU switches at once; off leaves an Ampere GPU in need of
        // a reset.
        if !on && !self.instances.is_empty() {
            return Err(Cause::LeftOn("there are instances"));
        }
        let uuid = &self.plan.uuid;
        if !on
            && !self
                .shared
                .nvml_on(uuid, GpuHandle::changes_without_reset)?
        {
            return Err(Cause::LeftOn(
                "to switch it off again, this GPU needs a reset",
            ));
        }
        Ok(false)
    }

    fn try_to_switch(&mut self, on: bool, step: Option<StepOf<'_>>) -> Result<(), Cause> {
        let mut backoff = Backoff::new(self.interrupt());
        let mut may_stop = self.shared.context.allowed.stop_holders && !self.rolling_back;
        loop {
            let activation = self.set_mig_mode(on)?;
            let mode = self.query_mig_mode();
            if mode.as_ref().is_ok_and(|mode| mode.current == on) {
                self.mig = on;
                self.instances.clear();
                return Ok(());
            }
            // What is unknown, or stays pending until a reset or reboot, is undone too.
            if !self.rolling_back && (mode.is_err() || activation != Code::IN_USE) {
                self.mig = on;
            }
            let mode = mode?;
            if activation != Code::IN_USE {
                return self.reset_gpu(on, activation, mode);
            }
            let open = self.shared.open_by(self.snapshot).unwrap_or_default();
            if let Some((step, holder)) = step.zip(open.seen.first()) {
                self.shared.progress.waits(step, &holder.to_string());
            }
            let mut has_stopped = false;
            if !open.seen.is_empty() && may_stop {
                may_stop = false;
                let stopped = self.stop_units(&open);
                has_stopped =
                    stopped.map_err(|cause| cause.with_cleanup(self.cancel_mig_change(on)))?;
            }
            // The driver releases a GPU a moment after the exit of its holder, and an nvidia-smi soon exits.
            if has_stopped || backoff.wait() {
                continue;
            }
            let cause = if self.interrupt().is_some_and(Interrupt::is_interrupted) {
                Cause::Interrupted
            } else {
                Cause::Busy {
                    holders: self.shared.holders_of(self.snapshot, &self.plan.uuid),
                    hidden: open.hidden,
                    stops_services: self.shared.context.allowed.stop_holders,
                }
            };
            return Err(cause.with_cleanup(self.cancel_mig_change(on)));
        }
    }

    /// Resets the GPU, if allowed, to activate a pending mode.
    fn reset_gpu(&mut self, on: bool, activation: Code, mode: MigMode) -> Result<(), Cause> {
        if self.rolling_back || !self.shared.context.allowed.reset {
            return Err(Cause::not_active(activation, mode, None));
        }
        let pci = self.snapshot.map(|gpu| gpu.pci.clone()).unwrap_or_default();
        let smi = self.shared.context.environment.find_nvidia_smi()?;
        if let Err(error) = self.shared.nvml()?.while_shut_down(|| smi.reset(&pci))? {
            if error.is_in_use() {
                return Err(Cause::Reset {
                    error,
                    holders: self.shared.holders_of(self.snapshot, &self.plan.uuid),
                });
            }
            let why = error.to_string();
            return Err(Cause::not_active(activation, mode, Some(&why)));
        }
        let mode = self.query_mig_mode()?;
        if mode.current != on {
            let why = Some("it was reset");
            return Err(Cause::not_active(activation, mode, why));
        }
        self.instances.clear();
        Ok(())
    }

    /// Cancels a pending change.
    fn cancel_mig_change(&self, on: bool) -> Result<(), Cause> {
        self.set_mig_mode(!on)?;
        Ok(())
    }

    fn set_mig_mode(&self, on: bool) -> Result<Code, Cause> {
        let set = self
            .shared
            .nvml_on(&self.plan.uuid, move |gpu| gpu.set_mig_mode(on));
        set.map_err(|error| {
            let product = self.snapshot.map_or("", |gpu| gpu.product.as_str());
            let driver = &self.shared.context.node.driver;
            match explain_no_mig(product, driver) {
                Some(NoMig { cause, remedy }) if error.code() == Some(Code::NOT_SUPPORTED) => {
                    let hint = format!("{cause}: {}", remedy.replace('`', ""));
                    Cause::NoMig { error, hint }
                }
                _ => error.into(),
            }
        })
    }

    fn query_mig_mode(&self) -> Result<MigMode, NvmlError> {
        let uuid = &self.plan.uuid;
        self.shared.nvml_on(uuid, GpuHandle::mig_mode)
    }

    /// Stops the known monitoring units among the holders of a GPU; returns false if there are none. The journal
    /// lists them before the first is stopped, and the run starts them again at its end.
    pub(super) fn stop_units(&self, holders: &Holders) -> Result<bool, Cause> {
        let units = self.shared.context.environment.find_systemctl()?;
        let holding = units.holding(holders)?;
        self.shared.journal.record_unit_stops(&holding)?;
        for unit in &holding {
            let stopped = units.stop(*unit);
            stopped.inspect_err(|_| self.shared.journal.record_failed_stop(*unit))?;
            let gpu = self.plan.name();
            let progress = self.shared.progress;
            progress.note(&format!("{gpu}: stopped {unit}, which had it open"));
        }
        Ok(!holding.is_empty())
    }
}
