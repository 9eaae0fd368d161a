//! One GPU of a node as a block of a profile.

use toml::{Table, Value};

use super::name::{shared_name, with_gpu};
use super::packing::compute_slices;
use super::{DraftBlock, DraftDevices, DraftEntry, DraftSelect};
use crate::node::{Device, Gpu, Node, Served};
use crate::nvml::GpuInstanceReading;
use crate::settings::Settings;

/// Returns the reason why a profile cannot express a GPU.
pub(super) fn left_out(gpu: &Gpu) -> Option<String> {
    if let Some(why) = &gpu.hidden {
        return Some(format!("its instances cannot be seen: {why}"));
    }
    let mut profiles = gpu.instances.iter().map(|instance| instance.profile);
    let unknown = profiles.find(|profile| gpu.profile(*profile).is_none())?;
    Some(format!(
        "it has an instance of the profile {unknown} that it does not offer"
    ))
}

/// Returns the record of a device's daemon.
pub(super) fn served<'a>(node: &'a Node, device: &Device) -> Option<&'a Served> {
    let served = node.served_on(&device.key);
    served.filter(|served| served.is_there())
}

fn name<'a>(node: &'a Node, device: &'a Device) -> &'a str {
    served(node, device).map_or(&device.default_name, |served| &served.record.name)
}

fn names<'a>(node: &'a Node, devices: &[&'a Device]) -> Vec<&'a str> {
    devices.iter().map(|device| name(node, device)).collect()
}

/// Returns the block for one GPU, every placement pinned, with `{gpu}` in names and without the GPU's index. `mps` are the
/// settings that its devices inherit.
pub(super) fn gpu_block(node: &Node, gpu: &Gpu, mps: &Table) -> DraftBlock {
    let devices = gpu.devices();
    let mut builder = Builder {
        node,
        gpu,
        mps,
        remarks: Vec::new(),
    };
    let devices = match devices.as_slice() {
        [whole] if whole.part.is_none() => DraftDevices::Whole {
            name: builder.name(&[whole], 1).map(|(name, _)| name),
            mps: served(node, whole).map(|_| builder.settings(&[whole])),
        },
        devices => {
            let instances = gpu.instances.iter();
            let mut entries: Vec<_> = instances
                .filter_map(|instance| builder.entry(instance, devices))
                .collect();
            // A template counts from entry to entry; the others stay in the order of placements.
            entries.sort_by_key(|(number, entry)| number.map(|_| (entry.name.clone(), *number)));
            DraftDevices::Instances(entries.into_iter().map(|(_, entry)| entry).collect())
        }
    };
    DraftBlock {
        remarks: builder.remarks,
        select: DraftSelect::default(),
        devices,
    }
}

struct Builder<'a> {
    node: &'a Node,
    gpu: &'a Gpu,
    mps: &'a Table,
    remarks: Vec<String>,
}

impl Builder<'_> {
    /// The entry for a GPU instance, and the number with which its devices' names begin.
    fn entry(
        &mut self,
        instance: &GpuInstanceReading,
        devices: &[Device],
    ) -> Option<(Option<u32>, DraftEntry)> {
        let profile = self.gpu.profile(instance.profile)?;
        let devices = devices.iter().filter(|device| {
            let part = device.part.as_ref();
            part.is_some_and(|part| part.gpu_instance == instance.id)
        });
        let (with_daemon, without): (Vec<&Device>, Vec<&Device>) =
            devices.partition(|device| served(self.node, device).is_some());
        let at = instance.placement.start;
        let remark = match (with_daemon.as_slice(), without.as_slice()) {
            ([], []) => Some("has no compute instance: up would make one"),
            ([_, ..], [_, ..]) => Some("has devices without daemons: up would start one for each"),
            _ => None,
        };
        let remark = remark.map(|what| format!("The GPU instance at {at} {what}."));
        self.remarks.extend(remark);
        let count = with_daemon.len() + without.len();
        let (name, number) = self.name(&with_daemon, count).unzip();
        let compute = compute_slices(instance, profile.multiprocessors);
        let entry = DraftEntry {
            name,
            at: Some(at),
            mps: (!with_daemon.is_empty()).then(|| self.settings(&with_daemon)),
            ..DraftEntry::plain(profile.name.clone(), compute)
        };
        Some((number.flatten(), entry))
    }

    /// The name of an entry of `count` devices that gives these their names; none where they have them by default.
    fn name(&mut self, devices: &[&Device], count: usize) -> Option<(String, Option<u32>)> {
        let names = names(self.node, devices);
        let mut devices = devices.iter();
        if devices.all(|device| name(self.node, device) == device.default_name) {
            return None;
        }
        let shared = shared_name(&names, count);
        if shared.is_none() {
            self.remarks.push(format!(
                "A profile cannot give these names: {}",
                names.join(", ")
            ));
        }
        shared.map(|(name, number)| (with_gpu(&name, self.gpu.index), number))
    }

    /// The settings of these devices that are not inherited.
    fn settings(&mut self, devices: &[&Device]) -> Table {
        let own = |device: &&Device| -> Table {
            let served = served(self.node, device);
            let all = served.map(|served| table(&served.record.settings));
            let inherited = |key: &String| self.mps.get(key).cloned().or_else(|| by_default(key));
            let differs = |(key, value): &(String, Value)| inherited(key).as_ref() != Some(value);
            all.into_iter().flatten().filter(differs).collect()
        };
        let mut settings: Vec<Table> = devices.iter().map(own).collect();
        settings.dedup();
        if settings.len() > 1 {
            let names = names(self.node, devices).join(", ");
            self.remarks.push(format!(
                "The settings of {names} differ, which a profile cannot say."
            ));
        }
        settings.into_iter().next().unwrap_or_default()
    }
}

/// Settings as a profile writes them.
pub(super) fn table(settings: &Settings) -> Table {
    let table = Table::try_from(settings).unwrap_or_default();
    let plain = |(key, value)| match value {
        // 50 and not 50.0
        #[allow(
            clippy::cast_possible_truncation,
            reason = "it is a whole number up to 100"
        )]
        Value::Float(number) if number.fract() == 0.0 => (key, Value::Integer(number as i64)),
        value => (key, value),
    };
    table.into_iter().map(plain).collect()
}

/// The value of a setting that a profile omits.
pub(super) fn by_default(key: &str) -> Option<Value> {
    table(&Settings::default()).remove(key)
}
