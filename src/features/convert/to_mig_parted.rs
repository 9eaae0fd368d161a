//! `export --format mig-parted`: a node as a configuration of mig-parted.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::mig_parted::{MigDevice, PackedInstance, pack};
use crate::node::{Device, Gpu, Node};
use crate::nvml::GpuInstanceReading;
use crate::render::format::grouped;

/// The name of the configuration, the one that mig-parted's own export gives.
const NAME: &str = "current";

/// The present geometry as a configuration of mig-parted, and what is lost on the way.
pub fn to_mig_parted(node: &Node) -> (String, Vec<String>) {
    let mut notes = Notes::default();
    let configs = node.gpus.iter().filter_map(|gpu| {
        if let Some(why) = &gpu.hidden {
            notes.lost.push(format!(
                "GPU {} is left out: its instances cannot be seen: {why}",
                gpu.index
            ));
            return None;
        }
        let config = (gpu.in_mig_mode(), mig_devices(gpu, &mut notes));
        Some((config, gpu.index))
    });
    let groups = grouped(configs, |(one, _), (other, _)| one == other);
    let mut served = node.devices.iter().filter(|device| device.served.is_some());
    if served.any(Device::is_there) {
        let what = "mig-parted knows nothing of MPS: names and settings of daemons are left out";
        notes.lost.push(what.to_owned());
    }
    let mut text = "# What this node had when mig-mps exported it.\n".to_owned();
    if node.gpus.iter().any(|gpu| !gpu.instances.is_empty()) {
        text.push_str("# Where instances lie is left out: mig-parted lets the driver choose.\n");
    }
    let namesakes = notes.of_namesakes();
    for line in namesakes.iter().chain(&notes.lost) {
        let _ = writeln!(text, "# {line}.");
    }
    let _ = write!(text, "version: v1\nmig-configs:\n  {NAME}:\n");
    for alike in groups {
        let (mig_enabled, mig_devices) = &alike[0].0;
        let indices: Vec<u32> = alike.iter().map(|(_, index)| *index).collect();
        let _ = writeln!(text, "    - devices: {indices:?}");
        let _ = writeln!(text, "      mig-enabled: {mig_enabled}");
        if !mig_devices.is_empty() {
            text.push_str("      mig-devices:\n");
        } else if *mig_enabled {
            text.push_str("      mig-devices: {}\n");
        }
        for (name, count) in mig_devices {
            let _ = writeln!(text, "        \"{name}\": {count}");
        }
    }
    (text, notes.lost)
}

/// The MIG devices of a GPU as mig-parted names and counts them; adds to `notes` what it cannot express.
fn mig_devices(gpu: &Gpu, notes: &mut Notes) -> BTreeMap<String, u32> {
    let mut stands: Vec<PackedInstance> = gpu
        .instances
        .iter()
        .filter_map(|instance| shared(gpu, instance, notes))
        .collect();
    let devices: Vec<MigDevice> = stands.iter().flat_map(PackedInstance::devices).collect();
    let mut packed = pack(&devices);
    packed.sort();
    stands.sort();
    if packed != stands {
        notes.lost.push(format!(
            "GPU {}: mig-parted would put compute instances together that are in GPU instances of \
             their own here",
            gpu.index
        ));
    }
    let mut counts = BTreeMap::new();
    for device in devices {
        *counts.entry(device.to_string()).or_default() += 1;
    }
    counts
}

/// The compute instances of a GPU instance, if mig-parted sees it; adds to `notes` what it cannot express.
fn shared(gpu: &Gpu, instance: &GpuInstanceReading, notes: &mut Notes) -> Option<PackedInstance> {
    let Some(profile) = gpu.profile(instance.profile) else {
        notes.lost.push(format!(
            "GPU {} has an instance of the profile {} that it does not offer",
            gpu.index, instance.profile
        ));
        return None;
    };
    if profile.name.is_unreadable() {
        notes.lost.push(format!(
            "GPU {}: {} at {} is left out: this version cannot read the name that the driver gives it",
            gpu.index, profile.name, instance.placement
        ));
        return None;
    }
    if instance.compute.is_empty() {
        notes.lost.push(format!(
            "GPU {}: {} at {} has no compute instance, and mig-parted does not see it",
            gpu.index, profile.name, instance.placement
        ));
        return None;
    }
    // go-nvlib names a compute instance by its slices alone, and with all slices by the GPU instance alone.
    let mut compute: Vec<u32> = instance.compute.iter().map(|one| one.slices).collect();
    compute.sort_unstable_by(|a, b| b.cmp(a));
    if compute == [profile.slices] {
        compute.clear();
    }
    for one in &instance.compute {
        let namesake = instance
            .offered
            .iter()
            .find(|offer| offer.slices == one.slices && offer.id != one.profile);
        if let Some(other) = namesake {
            let name = MigDevice {
                profile: profile.name.clone(),
                compute: Some(one.slices).filter(|slices| *slices < profile.slices),
            };
            let namesake = Namesake {
                name: name.to_string(),
                multiprocessors: one.multiprocessors,
                other: other.multiprocessors,
            };
            notes.namesakes.push((namesake, gpu.index));
        }
    }
    Some(PackedInstance {
        profile: profile.name.clone(),
        compute,
    })
}

/// A compute instance that has its name in mig-parted from its slices, as another one with more or fewer SMs has.
#[derive(PartialEq)]
struct Namesake {
    name: String,
    multiprocessors: u32,
    other: u32,
}

impl Namesake {
    /// True if it is the one of both with all SMs.
    fn has_all(&self) -> bool {
        self.multiprocessors > self.other
    }
}

/// The comments on a configuration.
#[derive(Default)]
struct Notes {
    /// The facts that mig-parted cannot express.
    lost: Vec<String>,
    /// The compute instances for which it has one name, with their GPUs.
    namesakes: Vec<(Namesake, u32)>,
}

impl Notes {
    /// Describes the compute instances that share names: those with all SMs, and mig-parted's own.
    fn of_namesakes(&mut self) -> Vec<String> {
        let mut notes = Vec::new();
        let full = self
            .namesakes
            .iter()
            .filter(|(kind, _)| kind.has_all())
            .count();
        if full > 0 && full < self.namesakes.len() {
            let what = "mig-parted has one name for both kinds of compute instance: an import makes them alike";
            self.lost.push(what.to_owned());
        }
        for alike in grouped(self.namesakes.drain(..), |(one, _), (other, _)| {
            one == other
        }) {
            let kind = &alike[0].0;
            let mut gpus: Vec<String> = alike.iter().map(|(_, gpu)| gpu.to_string()).collect();
            gpus.dedup();
            let (name, own, other) = (&kind.name, kind.multiprocessors, kind.other);
            let why = if kind.has_all() {
                format!("all {own} SMs. mig-parted accepts it, and would make one with {other}")
            } else {
                format!("{own} of {other} SMs, as mig-parted makes it. Import it with --exact")
            };
            let gpus = gpus.join(", ");
            notes.push(format!(
                "{name} on GPU {gpus}: the compute instance has {why}"
            ));
        }
        notes
    }
}
