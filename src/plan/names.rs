//! The names of devices: no two have the same.

use super::planner::Planner;
use super::slot::Slot;
use super::{Obstacle, Refusal};
use crate::node::Gpu;
use crate::profile::{Names, ProfileError, Span};

/// Names every device, or shows each name that two would have. An existing one keeps its name if the profile could have
/// given it: a change to another device renames nobody.
pub(super) fn name_all(
    planner: Planner<'_>,
    names: &mut Names,
    slots: Vec<&mut Slot<'_>>,
) -> Result<(), Refusal> {
    let to = |slot: &Slot<'_>| format!("a device of GPU {}", slot.gpu);
    let (mut numbered, others): (Vec<_>, Vec<_>) = slots
        .into_iter()
        .partition(|slot| slot.template().is_numbered());
    let mut mistakes: Vec<(Span, ProfileError)> = Vec::new();
    for slot in others {
        let name = slot.template().fill(slot.gpu, 0);
        if let Err(holder) = names.give(&name, &to(slot)) {
            planner.check_record_of(&name)?;
            let message = format!(
                "\"{}\" would name a device of GPU {} and {holder}",
                slot.name, slot.gpu
            );
            // Once for all GPUs.
            if mistakes.iter().all(|(span, _)| *span != slot.span) {
                let error = planner.profile.error(slot.span, message);
                let error = error.with_hint("put {gpu} or {n} into the name");
                mistakes.push((slot.span, error));
            }
        }
        slot.name = name;
    }
    let mistakes = mistakes.into_iter().map(|(_, error)| error);
    if let Some(error) = ProfileError::all(mistakes.collect()) {
        return Err(error.into());
    }
    numbered.retain_mut(|slot| {
        let has = slot.served.map(|served| &served.record.name);
        let has = has.filter(|has| slot.template().makes(slot.gpu, has));
        let kept = has.filter(|has| names.give(has, &to(slot)).is_ok());
        if let Some(kept) = kept {
            slot.name.clone_from(kept);
        }
        kept.is_none()
    });
    numbered.sort_by_key(|slot| (slot.gpu, slot.entry, slot.place));
    for slot in numbered {
        slot.name = names.give_next(slot.template(), slot.gpu, &to(slot));
    }
    Ok(())
}

impl Planner<'_> {
    /// Refuses a name that is recorded for a device of a GPU that is not seen. No other name in the profile helps if it is
    /// a default name.
    fn check_record_of(self, name: &str) -> Result<(), Obstacle> {
        let mut ours = self.node.served.iter().filter(|served| {
            served.run_dir == *self.run_dir && self.node.gpu(&served.record.key.gpu).is_none()
        });
        let Some(served) = ours.find(|served| served.record.name == name) else {
            return Ok(());
        };
        let (uuid, gpu) = (&served.record.uuid, &served.record.key.gpu);
        let what = format!(
            "\"{name}\" is the name of {uuid}, which is recorded as a device of {gpu}: no such GPU is seen here"
        );
        Err(Obstacle::new(
            what,
            format!("mig-mps down {name} stops its daemon, if that runs, and removes the record"),
        ))
    }

    /// Devices of GPUs that the profile leaves alone keep their names, given or by default.
    pub(super) fn names_of_others(self) -> Result<Names, Refusal> {
        let mut names = Names::default();
        let is_left_alone = |gpu: &&Gpu| self.block_of(gpu).is_none();
        let left_alone = self.node.gpus.iter().filter(is_left_alone);
        for device in left_alone.flat_map(Gpu::devices) {
            if self.node.served_on(&device.key).is_none() {
                // Default names differ from each other.
                let _ = names.give(&device.default_name, "a device of another GPU");
            }
        }
        for served in &self.node.served {
            let gpu = self.node.gpu(&served.record.key.gpu);
            if served.run_dir == *self.run_dir && gpu.as_ref().is_none_or(is_left_alone) {
                let name = &served.record.name;
                let given = names.give(name, "a device of another GPU");
                given.map_err(|_| {
                    let what = format!("two devices are recorded as \"{name}\"");
                    Obstacle::new(what, "take one down")
                })?;
            }
        }
        Ok(names)
    }
}
