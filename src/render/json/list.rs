use schemars::JsonSchema;
use serde::Serialize;

use super::{VERSION, Version};
use crate::geometry::{GpuInstanceProfile, Placement};
use crate::node::{self, Node};
use crate::nvml::{self, GpuInstanceReading};

/// The output of `mig-mps list --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "list")]
pub struct ListDocument {
    version: Version,
    /// The driver's version.
    driver: String,
    /// The GPUs, by index.
    gpus: Vec<ListedGpu>,
    /// The facts that are hidden from the caller, as sentences.
    hidden: Vec<String>,
}

/// A GPU.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "gpu")]
struct ListedGpu {
    /// NVML's index, in PCI order.
    index: u32,
    /// The UUID, `GPU-…`.
    uuid: String,
    /// The product name.
    product: String,
    /// The PCI address.
    pci: String,
    /// All device memory; null if hidden.
    memory_total_bytes: Option<u64>,
    /// Device memory in use; null if hidden.
    memory_used_bytes: Option<u64>,
    /// The MIG mode; null for a GPU without MIG.
    mig: Option<MigMode>,
    /// The number of placement units.
    placement_units: u32,
    /// The GPU instances.
    gpu_instances: Vec<ListedInstance>,
    /// The devices: MIG devices, or the whole GPU.
    devices: Vec<Device>,
    /// The GPU instance profiles that it offers.
    profiles: Vec<Offer>,
    /// The facts about it that are hidden from the caller, as sentences.
    hidden: Vec<String>,
}

/// A MIG mode.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "mig_mode")]
struct MigMode {
    /// True if MIG is on.
    current: bool,
    /// True if MIG is on after the next reset.
    pending: bool,
}

impl From<nvml::MigMode> for MigMode {
    fn from(mode: nvml::MigMode) -> Self {
        Self {
            current: mode.current,
            pending: mode.pending,
        }
    }
}

/// A GPU instance.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "gpu_instance")]
struct ListedInstance {
    /// Its id.
    gpu_instance_id: u32,
    /// The profile name; null if the GPU does not offer that profile.
    profile: Option<String>,
    /// The number of the profile.
    profile_id: u32,
    /// The placement.
    placement: Placement,
    /// The number of its compute instances.
    compute_instances: usize,
}

/// A device.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "device")]
struct Device {
    /// The name, which commands take.
    name: String,
    /// The UUID, which CUDA takes: `MIG-…` or `GPU-…`.
    uuid: String,
    /// The profile name, such as `3g.40gb` or `1c.3g.40gb`; null for a whole GPU.
    profile: Option<String>,
    /// The id of its GPU instance; null for a whole GPU.
    gpu_instance_id: Option<u32>,
    /// The id of its compute instance; null for a whole GPU.
    compute_instance_id: Option<u32>,
    /// The placement of its GPU instance; null for a whole GPU.
    placement: Option<Placement>,
    /// Streaming multiprocessors; null for a whole GPU.
    multiprocessors: Option<u32>,
    /// All device memory, as its profile has it; null for a whole GPU.
    memory_total_bytes: Option<u64>,
}

/// A GPU instance profile.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "offer")]
pub(super) struct Offer {
    /// The name, such as `3g.40gb`.
    profile: String,
    /// The number.
    profile_id: u32,
    /// Compute slices.
    slices: u32,
    /// Streaming multiprocessors.
    multiprocessors: u32,
    /// Device memory.
    memory_total_bytes: u64,
    /// The number that fits on an empty GPU.
    most: u32,
    /// The number that still fits now; null if unknown.
    free: Option<u32>,
    /// Every placement it may take.
    placements: Vec<Placement>,
}

impl Offer {
    pub(super) fn of(profile: &GpuInstanceProfile) -> Self {
        Self {
            profile: profile.name.to_string(),
            profile_id: profile.id.0,
            slices: profile.slices,
            multiprocessors: profile.multiprocessors,
            memory_total_bytes: profile.memory_mib << 20,
            most: profile.most,
            free: profile.free,
            placements: profile.placements.clone(),
        }
    }
}

impl ListDocument {
    /// Describes these GPUs with these of their devices.
    pub fn of(node: &Node, shown: &[(&node::Gpu, Vec<node::Device>)]) -> Self {
        let gpus = shown.iter().map(|(gpu, devices)| {
            let devices = devices.iter().map(|device| Device::of(node, device));
            ListedGpu {
                index: gpu.index,
                uuid: gpu.uuid.clone(),
                product: gpu.product.clone(),
                pci: gpu.pci.clone(),
                memory_total_bytes: gpu.memory.map(|memory| memory.total),
                memory_used_bytes: gpu.memory.map(|memory| memory.used),
                mig: gpu.mig.map(MigMode::from),
                placement_units: gpu.units(),
                gpu_instances: gpu
                    .instances
                    .iter()
                    .map(|instance| ListedInstance::of(gpu, instance))
                    .collect(),
                devices: devices.collect(),
                profiles: gpu.profiles.iter().map(Offer::of).collect(),
                hidden: gpu.hidden.iter().cloned().collect(),
            }
        });
        Self {
            version: VERSION,
            driver: node.driver.clone(),
            gpus: gpus.collect(),
            hidden: node.hidden.clone(),
        }
    }
}

impl ListedInstance {
    fn of(gpu: &node::Gpu, instance: &GpuInstanceReading) -> Self {
        let profile = gpu.profile(instance.profile);
        Self {
            gpu_instance_id: instance.id.0,
            profile: profile.map(|profile| profile.name.to_string()),
            profile_id: instance.profile.0,
            placement: instance.placement,
            compute_instances: instance.compute.len(),
        }
    }
}

impl Device {
    fn of(node: &Node, device: &node::Device) -> Self {
        let part = device.part.as_ref();
        Self {
            name: node.name_of(device),
            uuid: device.uuid.clone(),
            profile: part.map(|part| part.title.clone()),
            gpu_instance_id: part.map(|part| part.gpu_instance.0),
            compute_instance_id: part.map(|part| part.compute_instance.0),
            placement: part.map(|part| part.placement),
            multiprocessors: part.map(|part| part.multiprocessors),
            memory_total_bytes: part.map(|part| part.memory_mib << 20),
        }
    }
}
