//! Joint devices of a snapshot: several whole GPUs that one daemon serves as one device.

use std::path::Path;

use super::{Client, Clients, Device, Finding, Gpu, Node, Served, describe_former_gpu};
use crate::host::format_gpus;
use crate::mps::ControlProgram;
use crate::nvml::{EXCLUSIVE_PROCESS, Nvml};
use crate::profile::{NameTemplate, Profile};
use crate::state::{AppliedProfile, DeviceKey, JointDevices, RecordedGpu, RunDir};

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
                self.gpus
                    .iter()
                    .filter(|gpu| !gpu.in_mig_mode())
                    .find(|gpu| gpu.uuid == *uuid)
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

    /// Returns the devices with these names, or all if none is named; those that do not exist come last. The GPUs of a
    /// joint device that `down` has stopped are shown only as that device.
    pub fn devices_to_show(&self, names: &[String]) -> Vec<&Device> {
        let mut shown: Vec<&Device> = self.devices.iter().collect();
        shown.retain(|device| match names {
            [] => !self.is_in_stopped_joint(device),
            names => names.contains(&device.name),
        });
        shown.sort_by_key(|device| !device.exists());
        shown
    }

    /// True for a GPU of a joint device that `down` has stopped.
    pub(super) fn is_in_stopped_joint(&self, device: &Device) -> bool {
        self.stopped_joint_of(device).is_some()
    }

    /// Returns the joint device that `down` has stopped and that has this GPU.
    pub fn stopped_joint_of(&self, device: &Device) -> Option<&Device> {
        let is_its = |joint: &Device| joint.key != device.key && joint.key.excludes(&device.key);
        self.devices
            .iter()
            .find(|joint| joint.is_stopped_joint() && is_its(joint))
    }

    /// Returns the name of the joint device that `down` has stopped and that had the GPU with this index, by its record alone.
    pub(super) fn stopped_joint_with(&self, index: u32) -> Option<String> {
        let is_served = |key: &DeviceKey| {
            let mut served = self.served();
            served.any(|served| served.record.key.excludes(key))
        };
        self.stopped
            .iter()
            .map(|(_, stopped)| &stopped.record)
            .find(|record| record.joint_gpus.contains(&index) && !is_served(&record.key))
            .map(|record| record.name.clone())
    }

    /// Returns the GPUs that the joint device with this name had when a profile with it was applied, and that do not exist.
    pub fn absent_joint_gpus(&self, name: &str) -> Vec<&RecordedGpu> {
        self.joint_before
            .iter()
            .find_map(|applied| applied.joint.get(name))
            .into_iter()
            .flatten()
            .filter(|gpu| self.gpu_with_uuid(&gpu.uuid).is_none())
            .collect()
    }

    /// Returns the GPUs that a joint device of these GPUs had when a profile with it was applied, with that profile. It is
    /// known by its name, which may be a template, and if it was renamed, by all of its GPUs that exist.
    pub fn joint_gpus_before(
        &self,
        name: &str,
        gpus: &[&Gpu],
    ) -> Option<(&AppliedProfile, &[RecordedGpu])> {
        let recorded = || {
            self.joint_before
                .iter()
                .flat_map(|applied| applied.joint.iter().map(move |joint| (applied, joint)))
        };
        let is_own = |recorded: &RecordedGpu| gpus.iter().any(|gpu| gpu.uuid == recorded.uuid);
        let has_same_name = |recorded: &(_, (&String, &Vec<RecordedGpu>))| {
            let (_, (other, before)) = recorded;
            can_have_name(name, other, before) && before.iter().any(is_own)
        };
        let is_renamed = |recorded: &(_, (&String, &Vec<RecordedGpu>))| {
            let (_, (_, before)) = recorded;
            let is_left =
                |gpu: &RecordedGpu| is_own(gpu) || self.gpu_with_uuid(&gpu.uuid).is_none();
            before.iter().any(is_own) && before.iter().all(is_left)
        };
        let found = recorded().find(has_same_name);
        let (applied, (_, before)) = found.or_else(|| recorded().find(is_renamed))?;
        Some((applied, before))
    }

    /// Returns the GPUs of the joint devices of a profile. One that no daemon of the run directory serves, as it was left
    /// out, has those that it had when the same text was applied last.
    pub fn joint_devices_of(&self, profile: &Profile, run_dir: &RunDir) -> JointDevices {
        let mut joint = JointDevices::new();
        for served in self.served() {
            let record = &served.record;
            let gpus: Vec<RecordedGpu> = record
                .gpus_with_indices()
                .map(|(uuid, index)| RecordedGpu {
                    uuid: uuid.to_owned(),
                    index,
                })
                .collect();
            let mut names = profile.joint_names();
            let is_its = names.any(|name| can_have_name(name, &record.name, &gpus));
            if record.key.is_joint() && served.run_dir == *run_dir && is_its {
                joint.insert(record.name.clone(), gpus);
            }
        }
        let last = self.joint_before.first();
        let same = last.filter(|applied| applied.text == profile.source.text());
        for (name, before) in same.into_iter().flat_map(|applied| &applied.joint) {
            let mut now = joint.values().flatten();
            let is_elsewhere = now.any(|gpu| before.iter().any(|own| own.uuid == gpu.uuid));
            if !is_elsewhere && !joint.contains_key(name) {
                joint.insert(name.clone(), before.clone());
            }
        }
        joint
    }

    /// Returns the GPUs of a device that are seen, in their order.
    pub fn gpus_with_key(&self, key: &DeviceKey) -> impl Iterator<Item = &Gpu> {
        key.gpus()
            .iter()
            .filter_map(|uuid| self.gpu_with_uuid(uuid))
    }

    /// Returns the indices of a device's GPUs, as far as they are known; of a joint device that lacks a GPU, those of the others.
    pub fn gpu_indices_of(&self, device: &Device) -> Vec<u32> {
        if device.key.is_joint() && device.is_gone() {
            return self
                .gpus_with_key(&device.key)
                .map(|gpu| gpu.index)
                .collect();
        }
        device.gpu_indices().to_vec()
    }

    /// Gives the GPUs of a recorded joint device that are there the indices that they have now.
    pub(super) fn renumber_gpus(&self, device: &mut Device) {
        for (index, uuid) in device.joint_gpus.iter_mut().zip(&device.key.joint) {
            if let Some(gpu) = self.gpu_with_uuid(uuid) {
                *index = gpu.index;
            }
        }
    }

    /// Describes the first GPU of a device that is not seen.
    pub(super) fn first_absent_gpu(&self, served: &Served) -> Option<String> {
        let mut gpus = served.record.gpus_with_indices();
        let (uuid, index) = gpus.find(|(uuid, _)| self.gpu_with_uuid(uuid).is_none())?;
        Some(describe_former_gpu(uuid, index))
    }

    /// Names the GPUs of a device that are not in the compute mode that its daemon needs.
    pub(super) fn gpus_with_lost_mode(&self, served: &Served) -> String {
        if !served.record.key.is_joint() {
            return "its GPU".to_owned();
        }
        let indices: Vec<u32> = self
            .gpus_with_key(&served.record.key)
            .filter(|gpu| {
                gpu.compute_mode
                    .is_some_and(|mode| mode != EXCLUSIVE_PROCESS)
            })
            .map(|gpu| gpu.index)
            .collect();
        format_gpus(&indices)
    }

    /// Returns the device that has a GPU as a whole, if it exists: the GPU itself, or a joint device.
    pub fn whole_device_of(&self, gpu: &Gpu) -> Option<&Device> {
        let joint = |device: &&Device| device.is_whole() && device.key.has_gpu(&gpu.uuid);
        self.device_with_uuid(&gpu.uuid)
            .or_else(|| self.existing_devices().find(joint))
    }
}

impl Device {
    /// True for a joint device that `down` has stopped.
    pub(super) fn is_stopped_joint(&self) -> bool {
        self.key.is_joint() && self.served.is_none()
    }
}

impl Served {
    /// Returns what takes no other client that sees the GPUs at these positions, and the number of its clients: the device, or
    /// one GPU of a joint device.
    pub fn find_full_part(&self, positions: &[usize]) -> Option<(String, usize)> {
        let (name, clients) = (&self.record.name, self.clients.as_slice().len());
        let limit = self.firm_client_limit();
        if limit.is_some_and(|limit| clients >= limit as usize) {
            return Some((format!("device {name}"), clients));
        }
        let full = self.gpus_at_limit(self.measured_limit);
        let gpu = positions
            .iter()
            .filter_map(|position| self.record.joint_gpus.get(*position))
            .find(|gpu| full.contains(gpu))?;
        Some((
            format!("GPU {gpu} of device {name}"),
            self.clients_on_gpu(*gpu),
        ))
    }

    /// Returns the GPUs of a joint device that have their part of this number of clients.
    fn gpus_at_limit(&self, limit: Option<u32>) -> Vec<u32> {
        let Some(limit) = limit else {
            return Vec::new();
        };
        let each = self.part_of_one_gpu(limit) as usize;
        let is_at_limit = |gpu: &u32| self.clients_on_gpu(*gpu) >= each;
        self.record
            .joint_gpus
            .iter()
            .copied()
            .filter(is_at_limit)
            .collect()
    }

    /// Returns the part of a number of clients that one of its GPUs takes.
    pub fn part_of_one_gpu(&self, clients: u32) -> u32 {
        clients / self.record.key.gpu_count()
    }

    /// Returns the number of clients with a context on one GPU of a joint device.
    fn clients_on_gpu(&self, index: u32) -> usize {
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
        let Ok(nvml) = Nvml::open(library) else {
            return;
        };
        let Some(processes) = nvml.query_processes_on(self.record.driver_uuids()) else {
            return;
        };
        let indices = &self.record.joint_gpus;
        for client in self.clients.as_mut_slice() {
            client.gpus = processes
                .compute
                .iter()
                .filter(|usage| Some(usage.pid) == client.pid)
                .flat_map(|usage| &usage.gpus)
                .filter_map(|usage| usage.of_device(indices))
                .collect();
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

impl Clients {
    fn as_mut_slice(&mut self) -> &mut [Client] {
        match self {
            Self::Known(clients) | Self::Partial(clients) => clients,
        }
    }
}

impl Device {
    /// Returns the most clients that its daemon takes, on all its GPUs together, which are like this one.
    pub(super) fn client_limit(&self, gpu: &Gpu, program: ControlProgram) -> Option<u32> {
        let slices = self.key.instance.map(|key| key.compute.size);
        gpu.client_limit(program, slices)
            .map(|limit| limit * self.key.gpu_count())
    }
}

/// True if a joint device of these GPUs can have that name by a template.
fn can_have_name(template: &str, name: &str, gpus: &[RecordedGpu]) -> bool {
    let first = gpus.first().and_then(|gpu| gpu.index);
    NameTemplate(template).can_yield(first.unwrap_or_default(), name)
}

/// Returns the most clients of whole GPUs: as measured, and as measured or documented.
pub(super) fn client_limits(
    program: ControlProgram,
    key: &DeviceKey,
) -> (Option<u32>, Option<u32>) {
    let of_all = |limit| limit * key.gpu_count();
    (
        program.measured_client_limit().map(of_all),
        Some(of_all(program.client_limit)),
    )
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
