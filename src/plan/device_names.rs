//! The names of the devices that a profile makes.

use super::Refusal;
use super::device::DevicePlan;
use super::gpu_steps::Layout;
use super::up::Planner;
use crate::failure::Problem;
use crate::node::{Device, Gpu};
use crate::profile::{Names, ProfileError, Span};

/// The GPUs with a device that would get a name which one of a GPU that is left out keeps.
pub(super) fn name_conflicts(planner: Planner<'_>, layouts: &[Layout<'_>]) -> Vec<(u32, Refusal)> {
    let keeps = |name: &str| {
        let served = planner.node.served_named(name)?;
        let gpu = planner.node.gpu_with_uuid(&served.record.key.gpu)?;
        (served.run_dir == *planner.run_dir && planner.left_out?.has_gpu(gpu.index)).then_some(())
    };
    layouts
        .iter()
        .flat_map(|layout| &layout.devices)
        .filter(|device| !device.name_template().is_numbered())
        .filter_map(|device| {
            let name = device.name_template().fill(device.gpu, 0);
            keeps(&name)?;
            let why = format!("a device of another GPU keeps the name {name}");
            let hint = "solve the problem of that GPU first";
            Some((device.gpu, Problem::new(why, hint).into()))
        })
        .collect()
}

/// Devices of GPUs that the profile leaves alone keep their names, given or by default.
fn names_of_others(planner: Planner<'_>) -> Result<Names, Refusal> {
    let mut names = Names::default();
    let left_alone = planner
        .node
        .gpus
        .iter()
        .filter(|gpu| planner.leaves_alone(gpu));
    for device in left_alone.flat_map(Gpu::devices) {
        let joined = planner.node.device_with_key(&device.key);
        if joined.is_none_or(|joined| joined.served.is_none()) {
            // Default names differ from each other.
            let _ = names.assign_name(&device.name, "a device of another GPU");
        }
    }
    for served in planner.node.served() {
        // A joint device ends, or the profile is refused, if one of its GPUs is selected.
        let mut gpus = planner.node.gpus_with_key(&served.record.key);
        if served.run_dir == *planner.run_dir && gpus.all(|gpu| planner.leaves_alone(gpu)) {
            let name = &served.record.name;
            let given = names.assign_name(name, "a device of another GPU");
            given.map_err(|_| {
                let what = format!("two devices have the name \"{name}\"");
                Problem::new(what, "stop one of them with `mig-mps down UUID`")
            })?;
        }
    }
    Ok(names)
}

/// Returns the mistake of a name that another device has, and the remedy.
fn describe_taken_name(device: &DevicePlan, holder: &str) -> (String, &'static str) {
    let own = device.describe_as_holder();
    let name = &device.name;
    if holder == own {
        let message = format!(
            "\"{name}\" would be the name of two devices of GPU {}",
            device.gpu
        );
        return (message, "write another name, or add {n} to both names");
    }
    let message = format!("\"{name}\" would be the name of {own} and of {holder}");
    (
        message,
        "write another name, or add {gpu} or {n} to the name",
    )
}

/// Names every device, or shows each name that two would have. An existing one keeps its name if the profile could have
/// given it: a change to another device renames nobody.
pub(super) fn name_devices(
    planner: Planner<'_>,
    layouts: &mut [Layout<'_>],
) -> Result<(), Refusal> {
    let mut names = names_of_others(planner)?;
    let (mut numbered, others): (Vec<&mut DevicePlan>, Vec<_>) = layouts
        .iter_mut()
        .flat_map(|layout| &mut layout.devices)
        .partition(|device| device.name_template().is_numbered());
    let mut mistakes: Vec<(Span, ProfileError)> = Vec::new();
    for device in others {
        let name = device.name_template().fill(device.gpu, 0);
        if let Err(holder) = names.assign_name(&name, &device.describe_as_holder()) {
            check_record_of(planner, &name)?;
            let (message, hint) = describe_taken_name(device, &holder);
            // Once for all GPUs.
            if mistakes.iter().all(|(span, _)| *span != device.span) {
                let error = planner.profile.error_at(device.span, message);
                mistakes.push((device.span, error.with_hint(hint)));
            }
        }
        device.name = name;
    }
    let errors = mistakes.into_iter().map(|(_, error)| error);
    if let Some(error) = ProfileError::from_errors(errors.collect()) {
        return Err(error.into());
    }
    numbered.retain_mut(|device| {
        let kept = device
            .find_served(planner)
            .map(|served| &served.record.name)
            .filter(|name| device.name_template().can_yield(device.gpu, name))
            .filter(|name| {
                names
                    .assign_name(name, &device.describe_as_holder())
                    .is_ok()
            });
        if let Some(kept) = kept {
            device.name.clone_from(kept);
        }
        kept.is_none()
    });
    numbered.sort_by_key(|device| (device.gpu, device.entry, device.place));
    for device in numbered {
        device.name = names.assign_next(
            device.name_template(),
            device.gpu,
            &device.describe_as_holder(),
        );
    }
    Ok(())
}

/// Refuses a name that is recorded for a device of a GPU that is not seen. No other name in the profile helps if it is
/// a default name.
fn check_record_of(planner: Planner<'_>, name: &str) -> Result<(), Problem> {
    let Some(served) = planner
        .node
        .served()
        .filter(|served| {
            served.run_dir == *planner.run_dir
                && planner.node.gpu_with_uuid(&served.record.key.gpu).is_none()
        })
        .find(|served| served.record.name == name)
    else {
        return Ok(());
    };
    let (uuid, gpu) = (&served.record.uuid, &served.record.key.gpu);
    let lost = planner
        .node
        .device_named(name)
        .and_then(Device::lost_gpu_reason);
    let why = lost.map_or_else(
        || ", which is not present".to_owned(),
        |why| format!(": {why}"),
    );
    let what = format!("the name \"{name}\" is already used by device {uuid} on {gpu}{why}");
    Err(Problem::new(
        what,
        format!("run `mig-mps down {name}` to stop its daemon and remove its record"),
    ))
}
