use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::grouped;
use super::packing::{MigDevice, PackedInstance, compute_slices, pack};
use crate::node::{Gpu, Node};
use crate::nvml::GpuInstanceReading;

/// The name of the configuration, the one that mig-parted's own export gives.
const NAME: &str = "current";

/// The present geometry as a configuration of mig-parted, and what is lost on the way.
pub fn to_mig_parted(node: &Node) -> (String, Vec<String>) {
    let mut lost = Vec::new();
    let configs = node.gpus.iter().filter_map(|gpu| {
        if let Some(why) = &gpu.hidden {
            lost.push(format!(
                "GPU {} is left out: its instances cannot be seen: {why}",
                gpu.index
            ));
            return None;
        }
        let config = (gpu.in_mig_mode(), mig_devices(gpu, &mut lost));
        Some((config, gpu.index))
    });
    let groups = grouped(configs);
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
    for ((mig_enabled, mig_devices), indices) in groups {
        let _ = writeln!(text, "    - devices: {indices:?}");
        let _ = writeln!(text, "      mig-enabled: {mig_enabled}");
        if !mig_devices.is_empty() {
            text.push_str("      mig-devices:\n");
        } else if mig_enabled {
            text.push_str("      mig-devices: {}\n");
        }
        for (name, count) in &mig_devices {
            let _ = writeln!(text, "        \"{name}\": {count}");
        }
    }
    (text, lost)
}

/// The MIG devices of a GPU as mig-parted names and counts them; adds to `lost` what it cannot express.
fn mig_devices(gpu: &Gpu, lost: &mut Vec<String>) -> BTreeMap<String, u32> {
    let instances = gpu.instances.iter();
    let mut stands: Vec<PackedInstance> = instances
        .filter_map(|instance| shared(gpu, instance, lost))
        .collect();
    let mut devices = Vec::new();
    for PackedInstance { profile, compute } in &stands {
        let device = |compute| MigDevice {
            profile: profile.clone(),
            compute,
        };
        if compute.is_empty() {
            devices.push(device(None));
        }
        devices.extend(compute.iter().map(|&slices| device(Some(slices))));
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
    let mut counts = BTreeMap::new();
    for device in devices {
        *counts.entry(device.to_string()).or_default() += 1;
    }
    counts
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
