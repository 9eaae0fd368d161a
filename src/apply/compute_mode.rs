//! The compute mode of a device's GPUs. A daemon may need another mode, and the old mode is restored when the daemon stops.

use super::cause::Cause;
use super::context::Run;
use crate::nvml::{EXCLUSIVE_PROCESS, GpuHandle, compute_mode_name};
use crate::state::DeviceRecord;

/// Sets the compute mode that a daemon needs. Records the old mode first: if the run is killed, a later run can restore it.
pub(super) fn ensure_compute_mode(run: &Run<'_>, record: &mut DeviceRecord) -> Result<(), Cause> {
    if record.settings.compute_mode.is_none() {
        restore_compute_mode(run, record)?;
        record.compute_mode_before = None;
        return Ok(());
    }
    let mut modes = Vec::new();
    for gpu in record.key.gpus() {
        modes.push((gpu.clone(), run.nvml_on(gpu, GpuHandle::compute_mode)?));
    }
    check_one_mode(record, &modes)?;
    for (gpu, mode) in modes {
        if mode == EXCLUSIVE_PROCESS {
            continue;
        }
        record.compute_mode_before = Some(mode);
        run.run_dir.write_record(record)?;
        set_compute_mode(run, &gpu, EXCLUSIVE_PROCESS)?;
    }
    Ok(())
}

/// Checks that the GPUs of a joint device are in one mode: its record has one mode to restore.
fn check_one_mode(record: &DeviceRecord, modes: &[(String, u32)]) -> Result<(), Cause> {
    if !record.key.is_joint() {
        return Ok(());
    }
    let Some((_, first)) = modes.first() else {
        return Ok(());
    };
    let before = record.compute_mode_before;
    let expected = before.unwrap_or(*first);
    let is_ours = |mode: u32| before.is_some() && mode == EXCLUSIVE_PROCESS;
    let other = modes
        .iter()
        .find(|(_, mode)| *mode != expected && !is_ours(*mode));
    other.map_or(Ok(()), |(gpu, mode)| {
        Err(Cause::Other(format!(
            "compute-mode of a joint device needs GPUs in one mode: {gpu} is in {}, and the other GPUs were in {}",
            compute_mode_name(*mode),
            compute_mode_name(expected)
        )))
    })
}

/// Restores the compute mode that the GPUs had before the daemon started, unless another program has changed the mode since.
pub(super) fn restore_compute_mode(run: &Run<'_>, record: &DeviceRecord) -> Result<(), Cause> {
    let node = run.context.node;
    let Some(before) = record.compute_mode_before else {
        return Ok(());
    };
    if record.boot_id != node.boot_id {
        return Ok(());
    }
    let mut restored = Ok(());
    for gpu in record.key.gpus() {
        // A GPU in MIG mode has no compute mode.
        if node
            .gpu_with_uuid(gpu)
            .is_some_and(|gpu| !gpu.in_mig_mode())
        {
            restored = restored.and(restore_on_gpu(run, gpu, before));
        }
    }
    restored
}

fn restore_on_gpu(run: &Run<'_>, gpu: &str, before: u32) -> Result<(), Cause> {
    if run.nvml_on(gpu, GpuHandle::compute_mode)? == EXCLUSIVE_PROCESS {
        set_compute_mode(run, gpu, before)?;
    }
    Ok(())
}

fn set_compute_mode(run: &Run<'_>, gpu: &str, wanted: u32) -> Result<(), Cause> {
    let found = run.nvml_on(gpu, move |handle| handle.set_compute_mode(wanted))?;
    if found == wanted {
        return Ok(());
    }
    Err(Cause::Other(format!(
        "the compute mode was set to {wanted} and reads back as {found} (NVML's numbers)"
    )))
}
