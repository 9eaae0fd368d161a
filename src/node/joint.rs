//! Joint devices of a snapshot: several whole GPUs that one daemon serves as one device.

use std::path::Path;

use super::{Client, Device, Finding, Gpu, Node, Served};
use crate::host::format_gpus;
use crate::nvml::{EXCLUSIVE_PROCESS, GpuUsage, Nvml};
use crate::state::DeviceKey;

impl Node {
    /// Puts the joint devices that are recorded, or that `down` has stopped, in the place of their GPUs.
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
            if gpus.is_some() || is_one_lost && recorded.contains(&key) {
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
    /// True if it takes no other client, on whichever of its GPUs.
    pub fn is_full(&self) -> bool {
        let limit = self.firm_client_limit();
        limit.is_some_and(|limit| self.clients.as_slice().len() >= limit as usize)
    }

    /// Returns the first GPU of a joint device that takes no other client, among those at these positions.
    pub fn first_full_gpu(&self, positions: &[usize]) -> Option<u32> {
        let full = self.gpus_at_limit(self.measured_limit);
        let mut gpus = positions
            .iter()
            .filter_map(|position| self.record.joint_gpus.get(*position));
        gpus.find(|gpu| full.contains(gpu)).copied()
    }

    /// Returns the GPUs of a joint device that have their part of this number of clients.
    fn gpus_at_limit(&self, limit: Option<u32>) -> Vec<u32> {
        let Some(each) = limit.map(|limit| self.part_of_one_gpu(limit)) else {
            return Vec::new();
        };
        let gpus = self.record.joint_gpus.iter().copied();
        gpus.filter(|gpu| self.clients_on_gpu(*gpu) >= each as usize)
            .collect()
    }

    /// Returns the part of a number of clients that one of its GPUs takes.
    pub fn part_of_one_gpu(&self, clients: u32) -> u32 {
        clients / self.record.key.gpu_count()
    }

    /// Returns the number of clients with a context on one GPU of a joint device.
    pub fn clients_on_gpu(&self, index: u32) -> usize {
        let clients = self.clients.as_slice().iter();
        let on_gpu = |client: &&Client| client.gpus.iter().any(|gpu| gpu.index == index);
        clients.filter(on_gpu).count()
    }

    /// Asks the driver which GPUs of a joint device its clients use, if they are enough to fill one.
    pub fn find_client_gpus(&mut self, library: Option<&Path>) {
        let clients = self.clients.as_slice().len();
        let fills_one = |limit| clients >= self.part_of_one_gpu(limit) as usize;
        if !self.record.key.is_joint() || !self.measured_limit.is_some_and(fills_one) {
            return;
        }
        let nvml = Nvml::open(library).ok();
        let uuids = self.record.driver_uuids();
        let Some(processes) = nvml.and_then(|nvml| nvml.query_processes_on(uuids)) else {
            return;
        };
        for client in self.clients.as_mut_slice() {
            let mut usages = processes.compute.iter();
            let usage = usages.find(|usage| Some(usage.pid) == client.pid);
            let on_gpus = usage.into_iter().flat_map(|usage| &usage.gpus);
            // They are numbered by their positions.
            let by_index = on_gpus.filter_map(|usage| {
                let index = *self.record.joint_gpus.get(usage.index as usize)?;
                Some(GpuUsage { index, ..*usage })
            });
            client.gpus = by_index.collect();
        }
    }

    /// Describes the GPUs of a joint device on which no other client has a context.
    pub(super) fn full_gpus_remark(&self) -> Option<Finding> {
        let full = self.gpus_at_limit(self.hardware_limit);
        let (their, them) = match full.as_slice() {
            [] => return None,
            [_] => ("has reached its", "it"),
            _ => ("have reached their", "them"),
        };
        let gpus = format_gpus(&full);
        let what = format!(
            "{gpus} {their} limit of clients: another program's context on {them} fails with CUDA error 46"
        );
        Some(Finding::warn("clients-full", what))
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
