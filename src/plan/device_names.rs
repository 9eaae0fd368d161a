//! The names of the devices that a profile makes.

use super::Refusal;
use super::daemons::Slot;
use super::gpu_steps::Layout;
use super::up::Planner;
use crate::failure::Problem;
use crate::node::Gpu;
use crate::profile::{Names, ProfileError, Span};

impl Planner<'_> {
    /// The GPUs with a device that would get a name which one of a GPU that is left out keeps.
    pub(super) fn name_conflicts(self, layouts: &[Layout<'_>]) -> Vec<(u32, Refusal)> {
        let keeps = |name: &str| {
            let served = self.node.served_named(name)?;
            let gpu = self.node.gpu_with_uuid(&served.record.key.gpu)?;
            (served.run_dir == *self.run_dir && self.left_out?.has_gpu(gpu.index)).then_some(())
        };
        layouts
            .iter()
            .flat_map(|layout| &layout.slots)
            .filter(|slot| !slot.name_template().is_numbered())
            .filter_map(|slot| {
                let name = slot.name_template().fill(slot.gpu, 0);
                keeps(&name)?;
                let why = format!("a device of another GPU keeps the name {name}");
                let hint = "mend what keeps that GPU as it is";
                Some((slot.gpu, Problem::new(why, hint).into()))
            })
            .collect()
    }

    /// Devices of GPUs that the profile leaves alone keep their names, given or by default.
    pub(super) fn names_of_others(self) -> Result<Names, Refusal> {
        let mut names = Names::default();
        let left_alone = self.node.gpus.iter().filter(|gpu| self.leaves_alone(gpu));
        for device in left_alone.flat_map(Gpu::devices) {
            let joined = self.node.device_with_key(&device.key);
            if joined.is_none_or(|joined| joined.served.is_none()) {
                // Default names differ from each other.
                let _ = names.assign_name(&device.name, "a device of another GPU");
            }
        }
        for served in self.node.served() {
            let gpu = self.node.gpu_with_uuid(&served.record.key.gpu);
            if served.run_dir == *self.run_dir && gpu.is_none_or(|gpu| self.leaves_alone(gpu)) {
                let name = &served.record.name;
                let given = names.assign_name(name, "a device of another GPU");
                given.map_err(|_| {
                    let what = format!("two devices are recorded as \"{name}\"");
                    Problem::new(what, "take one down")
                })?;
            }
        }
        Ok(names)
    }
}

/// Names every device, or shows each name that two would have. An existing one keeps its name if the profile could have
/// given it: a change to another device renames nobody.
pub(super) fn name_devices(
    planner: Planner<'_>,
    names: &mut Names,
    slots: Vec<&mut Slot<'_>>,
) -> Result<(), Refusal> {
    let (mut numbered, others): (Vec<_>, Vec<_>) = slots
        .into_iter()
        .partition(|slot| slot.name_template().is_numbered());
    let mut mistakes: Vec<(Span, ProfileError)> = Vec::new();
    for slot in others {
        let name = slot.name_template().fill(slot.gpu, 0);
        if let Err(holder) = names.assign_name(&name, &slot.describe_as_holder()) {
            planner.check_record_of(&name)?;
            let message = format!(
                "\"{}\" would name {} and {holder}",
                slot.name,
                slot.describe_as_holder()
            );
            // Once for all GPUs.
            if mistakes.iter().all(|(span, _)| *span != slot.span) {
                let error = planner.profile.error_at(slot.span, message);
                mistakes.push((slot.span, error.with_hint("put {gpu} or {n} into the name")));
            }
        }
        slot.name = name;
    }
    let errors = mistakes.into_iter().map(|(_, error)| error);
    if let Some(error) = ProfileError::from_errors(errors.collect()) {
        return Err(error.into());
    }
    numbered.retain_mut(|slot| {
        let kept = slot
            .served
            .map(|served| &served.record.name)
            .filter(|name| slot.name_template().can_yield(slot.gpu, name))
            .filter(|name| names.assign_name(name, &slot.describe_as_holder()).is_ok());
        if let Some(kept) = kept {
            slot.name.clone_from(kept);
        }
        kept.is_none()
    });
    numbered.sort_by_key(|slot| (slot.gpu, slot.entry, slot.place));
    for slot in numbered {
        slot.name = names.assign_next(slot.name_template(), slot.gpu, &slot.describe_as_holder());
    }
    Ok(())
}
