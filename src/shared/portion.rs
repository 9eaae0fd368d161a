//! The part of a device that a program would get: its SMs and its memory.

use crate::node::{Device, Node, Served};
use crate::nvml::Memory;
use crate::settings::MemoryLimit;

/// The part of a device that a program would get now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Portion {
    /// The SMs, as far as they are known.
    pub multiprocessors: Option<u32>,
    /// The free memory in bytes, up to the device's limit for a client, as far as it is known.
    pub memory: Option<u64>,
    /// True for a joint device: this is the part of each GPU that the program sees, or of the one with the least memory.
    pub is_of_each_gpu: bool,
}

impl Portion {
    /// Returns what a program without separate limits would get, on the GPUs at these positions.
    pub fn for_device(node: &Node, device: &Device, served: &Served, gpus: &[usize]) -> Self {
        let settings = &served.record.settings;
        let size = node.size_of(device).unwrap_or_default();
        let tenths = settings.active_thread_percentage.to_tenths();
        Self {
            multiprocessors: size.multiprocessors.map(|sms| sms.usable_at(tenths)),
            memory: within_limit(served, free_memory(node, device, gpus)),
            is_of_each_gpu: device.key.is_joint(),
        }
    }
}

/// Returns the part of the memory of a GPU or MIG device that a client may have.
pub(super) fn within_limit(served: &Served, memory: Option<u64>) -> Option<u64> {
    let limit = served.record.settings.pinned_memory_limit;
    let limit = limit.map_or(u64::MAX, MemoryLimit::bytes);
    memory.map(|memory| memory.min(limit))
}

/// Returns the free memory of a device in bytes; all of it if the driver hides how much is used. Of a joint device, that of the
/// GPU with the least, among those at these positions.
pub(super) fn free_memory(node: &Node, device: &Device, gpus: &[usize]) -> Option<u64> {
    if device.key.is_joint() {
        let free = |memory: Memory| memory.total.saturating_sub(memory.used);
        return least_memory(device, gpus, free);
    }
    if let Some(memory) = device.memory() {
        return Some(memory.total.saturating_sub(memory.used));
    }
    all_memory(node, device, gpus)
}

/// Returns the memory of a device in bytes; of a joint device, that of each GPU.
pub(super) fn all_memory(node: &Node, device: &Device, gpus: &[usize]) -> Option<u64> {
    match &device.part {
        _ if !device.is_there() => None,
        _ if device.key.is_joint() => least_memory(device, gpus, |memory| memory.total),
        Some(part) => Some(part.memory_mib << 20),
        None => {
            let of_gpu = || node.gpu_with_uuid(&device.key.gpu)?.memory;
            Some(device.memory().or_else(of_gpu)?.total)
        }
    }
}

/// Returns the least value of the memory of the GPUs of a joint device at these positions.
fn least_memory(device: &Device, gpus: &[usize], value: impl Fn(Memory) -> u64) -> Option<u64> {
    gpus.iter()
        .map(|position| device.memory_of_gpu(*position).map(&value))
        .collect::<Option<Vec<u64>>>()?
        .into_iter()
        .min()
}
