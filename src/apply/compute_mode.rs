//! The compute mode of a device's GPUs. A daemon may need another mode, and the old mode is restored when the daemon stops.

use super::cause::Cause;
use super::context::Run;
use crate::nvml::{EXCLUSIVE_PROCESS, GpuHandle};
use crate::state::DeviceRecord;

/// Sets the compute mode that a daemon needs. Records the old mode first: if the run is killed, a later run can restore it.
pub(super) fn ensure_compute_mode(run: &Run<'_>, record: &mut DeviceRecord) -> Result<(), Cause> {
    if record.settings.compute_mode.is_none() {
        restore_compute_mode(run, record)?;
        record.compute_mode_before = None;
        return Ok(());
    }
    let gpus = record.key.gpus().to_vec();
    for gpu in &gpus {
        let is = run.nvml_on(gpu, GpuHandle::compute_mode)?;
        if is == EXCLUSIVE_PROCESS {
            continue;
        }
        // The GPUs of a joint device have one mode before.
        record.compute_mode_before = Some(is);
        run.run_dir.write_record(record)?;
        set_compute_mode(run, gpu, EXCLUSIVE_PROCESS)?;
    }
    Ok(())
}

/// Restores the compute mode that the GPUs had before the daemon started, unless another program has changed the mode since.
pub(super) fn restore_compute_mode(run: &Run<'_>, record: &DeviceRecord) -> Result<(), Cause> {
    let node = run.context.node;
    let Some(before) = record.compute_mode_before else {
        return Ok(());
    };
    for gpu in record.key.gpus() {
        let is_there = record.boot_id == node.boot_id && node.gpu_with_uuid(gpu).is_some();
        if is_there && run.nvml_on(gpu, GpuHandle::compute_mode)? == EXCLUSIVE_PROCESS {
            set_compute_mode(run, gpu, before)?;
        }
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
