use crate::geometry::{ComputeInstanceId, GpuInstanceId, Placement, ProfileName};
use crate::state::DeviceKey;

/// A device that one MPS daemon can serve: a MIG device, or a whole GPU that is not in MIG mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its identity in records.
    pub key: DeviceKey,
    /// `MIG-…` or `GPU-…`, as CUDA takes it.
    pub uuid: String,
    /// Its GPU's index.
    pub gpu: u32,
    /// `<gpu index>.<start of its placement>`, followed by `.c<n>` if several compute instances share a
    /// GPU instance; of a whole GPU, its index.
    pub default_name: String,
    /// Its part of the GPU; `None` for a whole GPU.
    pub part: Option<DevicePart>,
}

/// A MIG device's part of its GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePart {
    /// The GPU instance.
    pub gpu_instance: GpuInstanceId,
    /// The compute instance.
    pub compute_instance: ComputeInstanceId,
    /// The GPU instance profile.
    pub profile: ProfileName,
    /// `3g.40gb`, or `1c.3g.40gb` if the compute instance has only some of the SMs.
    pub title: String,
    /// The placement of the GPU instance.
    pub placement: Placement,
    /// The number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// Memory of the GPU instance in MiB, shared by its compute instances.
    pub memory_mib: u64,
}
