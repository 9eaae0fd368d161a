//! Switches MIG mode, and waits until the change is active. Looks at the GPUs before anything is touched.

use std::io;

use super::error::{Cause, Due};
use super::gpu::GpuRun;
use super::instances::Backoff;
use super::rollback::Effect;
use super::shared::{Allowed, Shared, StepOf};
use crate::host::{Environment, Holders, Interrupt};
use crate::node::Node;
use crate::nvml::{Code, GpuHandle, MigMode, NvmlError};
use crate::plan::{Held, Obstacle, Plan};

impl GpuRun<'_> {
    /// Switches MIG mode, and returns once it is active.
    ///
    /// NVML returns SUCCESS for a change that is only pending: the activation status and the mode that reads back
    /// tell the difference.
    pub(super) fn switch_mig(&mut self, on: bool, step: StepOf<'_>) -> Result<(), Cause> {
        if self
            .gpu
            .and_then(|gpu| gpu.mig)
            .is_some_and(|mode| mode.current == on)
        {
            // Another change is pending: cancel it.
            self.set_mode(on)?;
            if !on {
                self.record_switched_on(false)?;
            }
            return Ok(());
        }
        let was_ours = self.shared.node_record.has_switched_on(&self.plan.uuid);
        if on {
            // Recorded first: what a crash leaves behind is then known as ours.
            self.record_switched_on(true)?;
        }
        let switched = self.try_to_switch(on, was_ours, step);
        if !self.history.has_switched() {
            self.record_switched_on(was_ours)?;
        } else if switched.is_ok() {
            self.record_switched_on(on)?;
        }
        switched
    }

    fn record_switched_on(&self, is_ours: bool) -> io::Result<()> {
        let record = &self.shared.node_record;
        record.switched_on(&self.plan.uuid, is_ours)
    }

    fn try_to_switch(&mut self, on: bool, was_ours: bool, step: StepOf<'_>) -> Result<(), Cause> {
        let mut backoff = Backoff::new(self.interrupt());
        let mut may_stop = self.shared.context.allowed.stop_holders;
        loop {
            let activation = self.set_mode(on)?;
            let mode = match self.read_mode() {
                Ok(mode) => mode,
                Err(error) => {
                    self.history.did(Effect::MigMode { on, was_ours });
                    return Err(error.into());
                }
            };
            if mode.current == on {
                self.history.did(Effect::MigMode { on, was_ours });
                self.instances.clear();
                return Ok(());
            }
            if activation != Code::IN_USE {
                // It stays pending until a reset or reboot.
                self.history.did(Effect::MigMode { on, was_ours });
                return self.reset(on, activation, mode);
            }
            let open = self.shared.open_by(self.gpu).unwrap_or_default();
            if let Some(holder) = open.seen.first() {
                self.shared.progress.waits(step, &holder.to_string());
            }
            let mut has_stopped = false;
            if !open.seen.is_empty() && may_stop {
                may_stop = false;
                has_stopped = self
                    .shared
                    .stop_units(&open)
                    .map_err(|cause| cause.and(self.take_back(on)))?;
            }
            // The driver releases a GPU a moment after the exit of its holder, and an nvidia-smi soon exits.
            let tries_again = has_stopped || backoff.wait();
            if !tries_again && self.interrupt().is_some_and(Interrupt::is_asked) {
                return Err(Cause::Interrupted.and(self.take_back(on)));
            }
            if !tries_again {
                return Err(self.busy(on, open.hidden));
            }
        }
    }

    /// Resets the GPU, if allowed, to activate a pending mode.
    fn reset(&mut self, on: bool, activation: Code, mode: MigMode) -> Result<(), Cause> {
        if !self.shared.context.allowed.reset {
            return Err(Cause::not_active(activation, mode, Due::Reset));
        }
        let pci = self.gpu.map(|gpu| gpu.pci.clone()).unwrap_or_default();
        let smi = self.shared.context.environment.nvidia_smi()?;
        if let Err(error) = self.shared.nvml()?.while_shut_down(|| smi.reset(&pci))? {
            if error.is_in_use() {
                return Err(Cause::Reset {
                    error,
                    holders: self.shared.holders_of(self.gpu, &self.plan.uuid),
                });
            }
            let due = Due::Reboot(error.to_string());
            return Err(Cause::not_active(activation, mode, due));
        }
        let mode = self.read_mode()?;
        if mode.current != on {
            let due = Due::Reboot("it was reset".to_owned());
            return Err(Cause::not_active(activation, mode, due));
        }
        self.instances.clear();
        Ok(())
    }

    /// Switches the mode back, if that needs no reset.
    pub(super) fn switch_back(&mut self, from: bool) -> Result<(), Cause> {
        let mode = self.read_mode()?;
        if mode.current != from {
            return if mode.pending == from {
                Err(Cause::Pending)
            } else {
                Ok(())
            };
        }
        // The former instances need the mode on, and an idle GPU switches at once; off leaves an Ampere GPU in need of
        // a reset.
        if from && !self.instances.is_empty() {
            return Err(Cause::HasInstances);
        }
        let (shared, uuid) = (self.shared, &self.plan.uuid);
        if from && !shared.nvml_on(uuid, GpuHandle::changes_without_reset)? {
            return Err(Cause::NeedsReset);
        }
        let mut backoff = Backoff::new(self.interrupt());
        loop {
            let activation = self.set_mode(!from)?;
            let mode = self.read_mode()?;
            if mode.current != from {
                self.instances.clear();
                return Ok(());
            }
            if activation != Code::IN_USE {
                return Err(Cause::not_active(activation, mode, Due::Reset));
            }
            if !backoff.wait() {
                return Err(self.busy(!from, 0));
            }
        }
    }

    /// Gives up a change, because these many hidden processes and others use the GPU.
    fn busy(&self, on: bool, hidden: usize) -> Cause {
        let holders = self.shared.holders_of(self.gpu, &self.plan.uuid);
        let busy = Cause::Busy {
            on,
            holders,
            hidden,
        };
        busy.and(self.take_back(on))
    }

    /// Cancels a pending change.
    fn take_back(&self, on: bool) -> Result<(), Cause> {
        self.set_mode(!on)?;
        Ok(())
    }

    fn set_mode(&self, on: bool) -> Result<Code, NvmlError> {
        self.shared
            .nvml_on(&self.plan.uuid, move |gpu| gpu.set_mig_mode(on))
    }

    fn read_mode(&self) -> Result<MigMode, NvmlError> {
        let uuid = &self.plan.uuid;
        self.shared.nvml_on(uuid, GpuHandle::mig_mode)
    }
}

impl Shared<'_> {
    /// Stops the known monitoring units among the holders of a GPU; returns false if there are none. The journal
    /// lists them before the first is stopped, and the run starts them again at its end.
    pub(super) fn stop_units(&self, holders: &Holders) -> Result<bool, Cause> {
        let units = self.context.environment.units()?;
        let holding = units.holding(holders)?;
        self.journal.stopping(&holding)?;
        for unit in &holding {
            units.stop(*unit)?;
        }
        Ok(!holding.is_empty())
    }
}

/// Finds the processes that hold GPUs whose MIG mode the plan switches. Those that cannot be looked at count as held by
/// nobody: the switch itself finds out.
pub fn held(environment: &Environment, node: &Node, plan: &Plan, allowed: Allowed) -> Vec<Held> {
    let (gpus, minors): (Vec<_>, Vec<u32>) = plan
        .switched(node)
        .into_iter()
        .filter_map(|gpu| Some((gpu, gpu.minor?)))
        .unzip();
    if minors.is_empty() {
        return Vec::new();
    }
    let holders = environment.host.holders_of(&minors).unwrap_or_default();
    plan.held(node, gpus.into_iter().zip(holders), allowed.stop_holders)
}

/// Waits until no holder is in the way of the plan: an `nvidia-smi` soon exits. Calls `waits` before the first wait.
///
/// # Errors
/// The obstacle that remains.
pub fn wait_for_holders(
    environment: &Environment,
    node: &Node,
    plan: &Plan,
    allowed: Allowed,
    waits: impl FnOnce(&Held),
) -> Result<(), Obstacle> {
    let mut backoff = Backoff::new(Some(&environment.interrupt));
    let mut waits = Some(waits);
    loop {
        let held = held(environment, node, plan, allowed);
        let Some(first) = held.iter().find(|held| held.is_in_the_way) else {
            return Ok(());
        };
        if let Some(waits) = waits.take() {
            waits(first);
        }
        if !backoff.wait() {
            return first.obstacle().map_or(Ok(()), Err);
        }
    }
}
