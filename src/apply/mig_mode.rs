//! Switches MIG mode, and waits until the change is active.

use super::cause::Cause;
use super::context::StepOf;
use super::gpu_state::ChangingGpu;
use super::in_use::{Backoff, find_holders, find_processes_in_the_way, stop_units};
use crate::catalog::{NoMig, explain_no_mig};
use crate::host::Interrupt;
use crate::nvml::{Code, GpuHandle, MigMode};

/// Switches MIG mode, and returns once it is active.
///
/// NVML returns SUCCESS for a change that is only pending: the activation status and the mode that reads back
/// tell the difference.
pub(super) fn switch_mig(
    gpu: &mut ChangingGpu<'_>,
    on: bool,
    step: Option<StepOf<'_>>,
) -> Result<(), Cause> {
    let (record, uuid) = (&gpu.run.node_record, &gpu.plan.uuid);
    let was_ours = record.has_switched_on(uuid);
    let mut is_ours = on;
    if gpu.rolling_back {
        is_ours = record.had_switched_on(uuid);
        if is_switched_back(gpu, on)? {
            return Ok(record.record_switched_on(uuid, is_ours)?);
        }
    } else if gpu.mig == on {
        // Another change is pending: cancel it.
        set_mig_mode(gpu, on)?;
        if !on {
            record.record_switched_on(uuid, false)?;
        }
        return Ok(());
    }
    if is_ours {
        // Recorded first: what a crash leaves behind is then known as ours.
        record.record_switched_on(uuid, true)?;
    }
    let switched = try_to_switch(gpu, on, step);
    if gpu.mig != on {
        record.record_switched_on(uuid, was_ours)?;
    } else if switched.is_ok() {
        record.record_switched_on(uuid, is_ours)?;
    }
    switched
}

/// True if a rollback finds the mode that it wants, an error if it leaves the mode as it is.
fn is_switched_back(gpu: &mut ChangingGpu<'_>, on: bool) -> Result<bool, Cause> {
    let mode = gpu.call(GpuHandle::mig_mode)?;
    if mode.current == on {
        gpu.mig = on;
        return if mode.pending == on {
            Ok(true)
        } else {
            Err(Cause::Pending)
        };
    }
    // The former instances need the mode on, and an idle GPU switches at once; off leaves an Ampere GPU in need of
    // a reset.
    if !on && !gpu.instances.is_empty() {
        return Err(Cause::LeftOn("it still has instances"));
    }
    if !on && !gpu.call(GpuHandle::changes_without_reset)? {
        return Err(Cause::LeftOn("turning it off requires a GPU reset"));
    }
    Ok(false)
}

fn try_to_switch(
    gpu: &mut ChangingGpu<'_>,
    on: bool,
    step: Option<StepOf<'_>>,
) -> Result<(), Cause> {
    let mut backoff = Backoff::new(gpu.interrupt());
    let mut may_stop = gpu.run.context.allowed.stop_holders && !gpu.rolling_back;
    loop {
        let activation = set_mig_mode(gpu, on)?;
        let mode = gpu.call(GpuHandle::mig_mode);
        if mode.as_ref().is_ok_and(|mode| mode.current == on) {
            gpu.mig = on;
            gpu.instances.clear();
            return Ok(());
        }
        // What is unknown, or stays pending until a reset or reboot, is undone too.
        if !gpu.rolling_back && (mode.is_err() || activation != Code::IN_USE) {
            gpu.mig = on;
        }
        let mode = mode?;
        if activation != Code::IN_USE {
            return reset_gpu(gpu, on, activation, mode);
        }
        let open = find_holders(gpu);
        if let Some((step, holder)) = step.zip(open.seen.first()) {
            gpu.run.progress.waits(step, &holder.to_string());
        }
        let mut has_stopped = false;
        if !open.seen.is_empty() && may_stop {
            may_stop = false;
            let stopped = stop_units(gpu, &open);
            has_stopped =
                stopped.map_err(|cause| cause.with_cleanup(cancel_mig_change(gpu, on)))?;
        }
        // The driver releases a GPU a moment after the exit of its holder, and an nvidia-smi soon exits.
        if has_stopped || backoff.wait() {
            continue;
        }
        let cause = if gpu.interrupt().is_some_and(Interrupt::is_interrupted) {
            Cause::Interrupted
        } else {
            Cause::Busy {
                holders: find_processes_in_the_way(gpu, &gpu.plan.uuid),
                hidden: open.hidden,
                stops_services: gpu.run.context.allowed.stop_holders,
            }
        };
        return Err(cause.with_cleanup(cancel_mig_change(gpu, on)));
    }
}

/// Resets the GPU, if allowed, to activate a pending mode.
fn reset_gpu(
    gpu: &mut ChangingGpu<'_>,
    on: bool,
    activation: Code,
    mode: MigMode,
) -> Result<(), Cause> {
    if gpu.rolling_back || !gpu.run.context.allowed.reset {
        return Err(Cause::not_active(activation, mode, None));
    }
    let pci = gpu
        .snapshot
        .map(|snapshot| snapshot.pci.clone())
        .unwrap_or_default();
    let smi = gpu.run.context.environment.find_nvidia_smi()?;
    if let Err(error) = gpu.run.nvml()?.while_shut_down(|| smi.reset(&pci))? {
        if error.is_in_use() {
            return Err(Cause::Reset {
                error,
                holders: find_processes_in_the_way(gpu, &gpu.plan.uuid),
            });
        }
        let why = error.to_string();
        return Err(Cause::not_active(activation, mode, Some(&why)));
    }
    let mode = gpu.call(GpuHandle::mig_mode)?;
    if mode.current != on {
        let why = Some("the GPU was reset");
        return Err(Cause::not_active(activation, mode, why));
    }
    gpu.instances.clear();
    Ok(())
}

/// Cancels a pending change.
fn cancel_mig_change(gpu: &ChangingGpu<'_>, on: bool) -> Result<(), Cause> {
    set_mig_mode(gpu, !on).map(drop)
}

fn set_mig_mode(gpu: &ChangingGpu<'_>, on: bool) -> Result<Code, Cause> {
    let set = gpu.call(move |handle| handle.set_mig_mode(on));
    set.map_err(|error| {
        let product = gpu
            .snapshot
            .map_or("", |snapshot| snapshot.product.as_str());
        let driver = &gpu.run.context.node.driver;
        match explain_no_mig(product, driver) {
            Some(NoMig { cause, remedy }) if error.code() == Some(Code::NOT_SUPPORTED) => {
                let hint = format!("{remedy}; {cause}");
                Cause::NoMig { error, hint }
            }
            _ => error.into(),
        }
    })
}
