//! The compute mode of a GPU, which a daemon may need and its end gives back.

use super::cause::Cause;
use super::context::Run;
use crate::nvml::{EXCLUSIVE_PROCESS, GpuHandle};
use crate::state::DeviceRecord;

/// Sets the compute mode that a daemon needs. Records the old one first, so that a killed run leaves it
/// known.
pub(super) fn ensure_compute_mode(run: &Run<'_>, record: &mut DeviceRecord) -> Result<(), Cause> {
    if record.settings.compute_mode.is_none() {
        restore_compute_mode(run, record)?;
        record.compute_mode_before = None;
        return Ok(());
    }
    let is = run.nvml_on(&record.key.gpu, GpuHandle::compute_mode)?;
    if is == EXCLUSIVE_PROCESS {
        return Ok(());
    }
    record.compute_mode_before = Some(is);
    run.dir.write_record(record)?;
    set_compute_mode(run, record, EXCLUSIVE_PROCESS)
}

/// Restores the compute mode from before a daemon, unless somebody has changed it since.
pub(super) fn restore_compute_mode(run: &Run<'_>, record: &DeviceRecord) -> Result<(), Cause> {
    let is_of_this_boot = record.boot_id == run.context.node.boot_id;
    let Some(before) = record.compute_mode_before.filter(|_| is_of_this_boot) else {
        return Ok(());
    };
    if run.context.node.gpu_with_uuid(&record.key.gpu).is_none() {
        return Ok(());
    }
    let is = run.nvml_on(&record.key.gpu, GpuHandle::compute_mode)?;
    if is != EXCLUSIVE_PROCESS {
        return Ok(());
    }
    set_compute_mode(run, record, before)
}

fn set_compute_mode(run: &Run<'_>, record: &DeviceRecord, wanted: u32) -> Result<(), Cause> {
    let found = run.nvml_on(&record.key.gpu, move |handle| {
        handle.set_compute_mode(wanted)
    })?;
    if found == wanted {
        return Ok(());
    }
    Err(Cause::Other(format!(
        "the compute mode was set to {wanted} and reads back as {found} (NVML's numbers)"
    )))
}
