//! A device in the documents of `--json`.

use schemars::JsonSchema;
use serde::Serialize;

use crate::geometry::Placement;
use crate::node::Device;

/// A device.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DeviceDocument {
    /// The name, which commands take.
    name: String,
    /// The UUID, which CUDA takes: `MIG-…` or `GPU-…`. That of a joint device is `JOINT-…`, and CUDA takes those of its GPUs.
    uuid: String,
    /// The index of its GPU, or of the first GPU of a joint device; null if the device is gone.
    gpu: Option<u32>,
    /// The GPUs of a joint device; empty for other devices.
    joint_gpus: Vec<JointGpu>,
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
    /// All device memory, in bytes: as the driver tells it, or else as its profile has it; null if neither is known.
    memory_total_bytes: Option<u64>,
}

impl DeviceDocument {
    pub(super) fn from_device(device: &Device) -> Self {
        let part = device.part.as_ref();
        let memory = device.memory().map(|memory| memory.total);
        Self {
            name: device.name.clone(),
            uuid: device.uuid.clone(),
            gpu: device.gpu,
            joint_gpus: JointGpu::all_of_device(device),
            profile: part.map(|part| part.title.clone()),
            gpu_instance_id: part.map(|part| part.gpu_instance.0),
            compute_instance_id: part.map(|part| part.compute_instance.0),
            placement: part.map(|part| part.placement),
            multiprocessors: part.map(|part| part.multiprocessors),
            memory_total_bytes: memory.or_else(|| part.map(|part| part.memory_mib << 20)),
        }
    }
}

/// A GPU of a joint device.
#[derive(Debug, Serialize, JsonSchema)]
struct JointGpu {
    /// The index; the former one if the GPU no longer exists.
    index: u32,
    /// The UUID, `GPU-…`.
    uuid: String,
}

impl JointGpu {
    fn all_of_device(device: &Device) -> Vec<Self> {
        let gpus = device.joint_gpus.iter().zip(&device.key.joint);
        gpus.map(|(&index, uuid)| Self {
            index,
            uuid: uuid.clone(),
        })
        .collect()
    }
}
