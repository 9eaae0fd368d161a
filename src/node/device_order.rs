use crate::state::{DeviceKey, DeviceRecord};

use super::name_order::name_order;

/// The order in which every command names devices: by the index of their GPU, from left to right on it, then by name.
/// Devices of unknown GPUs come last.
pub fn device_order(gpu: Option<u32>, key: &DeviceKey, name: &str) -> impl Ord + use<> {
    let place = key.instance.map(|key| (key.placement, key.compute));
    (gpu.is_none(), gpu, place, name_order(name))
}

/// The order of devices that are known by their records.
pub fn record_order(record: &DeviceRecord) -> impl Ord + use<> {
    device_order(record.gpu, &record.key, &record.name)
}
