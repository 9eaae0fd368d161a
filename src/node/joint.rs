//! Joint devices of a snapshot: several whole GPUs that one daemon serves as one device.

use super::{Client, Device, Gpu, Node, Served};
use crate::nvml::EXCLUSIVE_PROCESS;
use crate::state::DeviceKey;

impl Node {
    /// Puts the joint devices that are recorded in the place of their GPUs, and those that `down` has stopped beside them.
    pub(super) fn join_gpus(&self, devices: &mut Vec<Device>, records: &[Served]) {
        let recorded: Vec<&DeviceKey> = records.iter().map(|served| &served.record.key).collect();
        let stopped = self
            .stopped
            .iter()
            .map(|(_, stopped)| &stopped.record.key)
            .filter(|key| !recorded.iter().any(|other| key.excludes(other)));
        let mut keys: Vec<&DeviceKey> = recorded.iter().copied().chain(stopped).collect();
        keys.retain(|key| key.is_joint());
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let whole_gpu = |uuid: &String| {
                let mut gpus = self.gpus.iter().filter(|gpu| !gpu.in_mig_mode());
                gpus.find(|gpu| gpu.uuid == *uuid)
            };
            let gpus: Option<Vec<&Gpu>> = key.joint.iter().map(whole_gpu).collect();
            // The daemon of a joint device has its other GPUs, too, when one is lost.
            let is_one_lost = self.gpus_with_key(key).count() < key.joint.len();
            let is_recorded = recorded.contains(&key);
            if is_recorded && (gpus.is_some() || is_one_lost) {
                devices.retain(|device| {
                    !(device.is_whole() && key.excludes(&device.key))
                        || recorded.contains(&&device.key)
                });
            }
            devices.extend(gpus.map(|gpus| Device::from_gpus(&gpus)));
        }
    }

    /// Returns the GPUs of a device that are seen, in their order.
    pub fn gpus_with_key(&self, key: &DeviceKey) -> impl Iterator<Item = &Gpu> {
        key.gpus()
            .iter()
            .filter_map(|uuid| self.gpu_with_uuid(uuid))
    }

    /// Returns the device that has a GPU as a whole, if it exists: the GPU itself, or a joint device.
    pub fn whole_device_of(&self, gpu: &Gpu) -> Option<&Device> {
        let joint = |device: &&Device| device.is_whole() && device.key.has_gpu(&gpu.uuid);
        self.device_with_uuid(&gpu.uuid)
            .or_else(|| self.existing_devices().find(joint))
    }
}

impl Served {
    /// True if it takes no other client. A joint device takes the measured number on each of its GPUs.
    pub fn is_full(&self) -> bool {
        let has_reached = |clients: usize, limit: Option<u32>| {
            limit.is_some_and(|limit| clients >= limit as usize)
        };
        let clients = self.clients.as_slice();
        if !self.record.key.is_joint() {
            return has_reached(clients.len(), self.firm_client_limit());
        }
        let mut gpus = self.record.joint_gpus.iter();
        has_reached(clients.len(), self.record.settings.max_clients)
            || gpus.all(|gpu| has_reached(self.clients_on_gpu(*gpu), self.measured_limit))
    }

    /// Returns the number of clients with a context on one GPU of a joint device.
    fn clients_on_gpu(&self, index: u32) -> usize {
        let clients = self.clients.as_slice().iter();
        let on_gpu = |client: &&Client| client.gpus.iter().any(|gpu| gpu.index == index);
        clients.filter(on_gpu).count()
    }

    /// Returns the number of clients that count for the limit of its daemon: on a joint device, those on one GPU.
    pub(super) fn most_clients_on_a_gpu(&self) -> usize {
        self.record
            .joint_gpus
            .iter()
            .map(|gpu| self.clients_on_gpu(*gpu))
            .max()
            .unwrap_or_else(|| self.clients.as_slice().len())
    }
}

impl Client {
    /// Returns its memory on one GPU: a memory limit holds for each. On a joint device, that is the one on which it has most.
    pub fn memory_on_one_gpu(&self) -> Option<u64> {
        self.gpus
            .iter()
            .map(|gpu| gpu.memory)
            .max()
            .unwrap_or(self.memory)
    }
}

/// Returns the compute mode of whole GPUs; of several, one that is not exclusive-process if there is one.
pub(super) fn shared_compute_mode(gpus: &[Gpu], key: &DeviceKey) -> Option<u32> {
    if key.instance.is_some() {
        return None;
    }
    let modes: Option<Vec<u32>> = gpus
        .iter()
        .filter(|gpu| key.has_gpu(&gpu.uuid))
        .map(|gpu| gpu.compute_mode)
        .collect();
    let modes = modes?;
    let others = modes.iter().find(|mode| **mode != EXCLUSIVE_PROCESS);
    others.or(modes.first()).copied()
}
