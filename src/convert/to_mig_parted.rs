use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::packing::{MigDevice, PackedInstance, compute_slices, pack};
use crate::node::{Gpu, Node};
use crate::nvml::GpuInstanceReading;

/// The name of the configuration, the one that mig-parted's own export gives.
const NAME: &str = "current";

/// The present geometry as a configuration of mig-parted, and what is lost on the way.
pub fn to_mig_parted(node: &Node) -> (String, Vec<String>) {
    let mut lost = Vec::new();
    let mut groups: Vec<(GpuConfig, Vec<u32>)> = Vec::new();
    for gpu in &node.gpus {
        if let Some(why) = &gpu.hidden {
            lost.push(format!(
                "GPU {} is left out: its instances cannot be seen: {why}",
                gpu.index
            ));
            continue;
        }
        let entry = GpuConfig::of(gpu, &mut lost);
        match groups.iter_mut().find(|(other, _)| *other == entry) {
            Some((_, indices)) => indices.push(gpu.index),
            None => groups.push((entry, vec![gpu.index])),
        }
    }
    if node.served.iter().any(|served| served.device_is_there) {
        lost.push(
            "mig-parted knows nothing of MPS: names and settings of daemons are left out"
                .to_owned(),
        );
    }
    let mut text = "# What this node had when mig-mps exported it.\n".to_owned();
    if node.gpus.iter().any(|gpu| !gpu.instances.is_empty()) {
        text.push_str("# Where instances lie is left out: mig-parted lets the driver choose.\n");
    }
    for line in &lost {
        let _ = writeln!(text, "# {line}.");
    }
    let _ = write!(text, "version: v1\nmig-configs:\n  {NAME}:\n");
    for (entry, indices) in groups {
        let _ = writeln!(text, "    - devices: {indices:?}");
        let _ = writeln!(text, "      mig-enabled: {}", entry.mig_enabled);
        match entry.mig_devices.is_empty() {
            true if !entry.mig_enabled => {}
            true => text.push_str("      mig-devices: {}\n"),
            false => text.push_str("      mig-devices:\n"),
        }
        for (name, count) in &entry.mig_devices {
            let _ = writeln!(text, "        \"{name}\": {count}");
        }
    }
    (text, lost)
}

#[derive(PartialEq)]
struct GpuConfig {
    mig_enabled: bool,
    mig_devices: BTreeMap<String, u32>,
}

impl GpuConfig {
    fn of(gpu: &Gpu, lost: &mut Vec<String>) -> Self {
        let mut devices = Vec::new();
        let mut stands = Vec::new();
        for instance in &gpu.instances {
            let Some(shared) = shared(gpu, instance, lost) else {
                continue;
            };
            let device = |compute| MigDevice {
                profile: shared.profile.clone(),
                compute,
            };
            if shared.compute.is_empty() {
                devices.push(device(None));
            }
            devices.extend(shared.compute.iter().map(|&slices| device(Some(slices))));
            stands.push(shared);
        }
        let mut packed = pack(&devices);
        packed.sort();
        stands.sort();
        if packed != stands {
            lost.push(format!(
                "GPU {}: mig-parted would put compute instances together that are in GPU instances of \
                 their own here",
                gpu.index
            ));
        }
        let mut mig_devices = BTreeMap::new();
        for device in devices {
            *mig_devices.entry(device.to_string()).or_default() += 1;
        }
        Self {
            mig_enabled: gpu.in_mig_mode(),
            mig_devices,
        }
    }
}

/// The compute instances of a GPU instance, if mig-parted sees it; adds to `lost` what it cannot express.
fn shared(
    gpu: &Gpu,
    instance: &GpuInstanceReading,
    lost: &mut Vec<String>,
) -> Option<PackedInstance> {
    let Some(profile) = gpu.profile(instance.profile) else {
        lost.push(format!(
            "GPU {} has an instance of the profile {} that it does not offer",
            gpu.index, instance.profile
        ));
        return None;
    };
    if instance.compute.is_empty() {
        lost.push(format!(
            "GPU {}: {} at {} has no compute instance, and mig-parted does not see it",
            gpu.index, profile.name, instance.placement
        ));
        return None;
    }
    let of_all = profile.multiprocessors;
    // The double-memory 1g has two compute instances of one slice.
    for compute in &instance.compute {
        if compute.slices == profile.slices && compute.multiprocessors < of_all {
            lost.push(format!(
                "GPU {}: the compute instance of {} at {} has {} of {of_all} SMs, and mig-parted has \
                 no word for it",
                gpu.index, profile.name, instance.placement, compute.multiprocessors
            ));
        }
    }
    let mut shared = PackedInstance {
        profile: profile.name.clone(),
        compute: compute_slices(instance, of_all),
    };
    shared.compute.sort_unstable_by(|a, b| b.cmp(a));
    Some(shared)
}
