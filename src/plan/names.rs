//! The names of devices: no two have the same.

use super::planner::Planner;
use super::slot::Slot;
use super::{Obstacle, Refusal};
use crate::node::{Device, Gpu};
use crate::profile::{NameTemplate, Names, Profile, ProfileError};

/// Names every device. An existing one keeps its name if the profile could have given it: a change to another device
/// renames nobody.
pub(super) fn name_all(
    profile: &Profile,
    names: &mut Names,
    mut slots: Vec<&mut Slot<'_>>,
) -> Result<(), ProfileError> {
    let to = |slot: &Slot<'_>| format!("a device of GPU {}", slot.gpu);
    for slot in slots
        .iter_mut()
        .filter(|slot| !slot.template().is_numbered())
    {
        slot.name = slot.template().fill(slot.gpu, 0);
        names.give(&slot.name, &to(slot)).map_err(|holder| {
            let message = format!(
                "\"{}\" would name a device of GPU {} and {holder}",
                slot.template, slot.gpu
            );
            profile
                .error(slot.span, message)
                .with_hint("put {gpu} or {n} into the name")
        })?;
    }
    slots.retain(|slot| slot.template().is_numbered());
    for slot in &mut slots {
        let Some(served) = slot.served else { continue };
        let has = &served.record.name;
        if slot.template().makes(slot.gpu, has) && names.give(has, &to(slot)).is_ok() {
            slot.name.clone_from(has);
        }
    }
    slots.retain(|slot| slot.name.is_empty());
    slots.sort_by_key(|slot| (slot.gpu, slot.entry, slot.place));
    for slot in slots {
        slot.name = names.give_next(NameTemplate(&slot.template), slot.gpu, &to(slot));
    }
    Ok(())
}

impl Planner<'_> {
    /// Devices of GPUs that the profile leaves alone keep their names, given or by default.
    pub(super) fn reserve_names_of_others(&mut self) -> Result<(), Refusal> {
        let left_alone = self
            .node
            .gpus
            .iter()
            .filter(|gpu| self.block_of(gpu).is_none());
        let unserved: Vec<Device> = left_alone
            .flat_map(Gpu::devices)
            .filter(|device| self.node.served_on(&device.key).is_none())
            .collect();
        for device in unserved {
            // Default names differ from each other.
            let _ = self
                .names
                .give(&device.default_name, "a device of another GPU");
        }
        for served in self
            .node
            .served
            .iter()
            .filter(|served| served.run_dir == *self.run_dir)
        {
            let gpu = self.node.gpu(&served.record.key.gpu);
            let selected = gpu.is_some_and(|gpu| self.block_of(gpu).is_some());
            if !selected {
                let name = &served.record.name;
                let given = self.names.give(name, "a device of another GPU");
                given.map_err(|_| Obstacle {
                    what: format!("two devices are recorded as \"{name}\""),
                    hint: "take one down".to_owned(),
                })?;
            }
        }
        Ok(())
    }
}
