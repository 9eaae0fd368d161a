//! A device, with everything that is known of it.

use super::{Gpu, OutsideMps, Served, Stray, Unseen};
use crate::geometry::{ComputeInstanceId, GpuInstanceId, Placement};
use crate::host::{Holder, Pid, join_words};
use crate::nvml::{Memory, Processes};
use crate::settings::Serve;
use crate::state::DeviceKey;

/// A device that one MPS daemon can serve: a MIG device, a whole GPU that is not in MIG mode, or several such GPUs as one joint
/// device. It exists, or has a record, or both.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its recorded name, else its default name: `<gpu index>.<start of its placement>`, followed by `.c<n>` if several
    /// compute instances share a GPU instance; of a whole GPU, its index. Its UUID if another device has that name.
    pub name: String,
    /// Its identity in records.
    pub key: DeviceKey,
    /// `MIG-…` or `GPU-…`, as CUDA takes it: the present one, else the recorded one; `JOINT-…` for a joint device.
    pub uuid: String,
    /// The index of its GPU, or of the first one of a joint device; `None` if that GPU is gone.
    pub gpu: Option<u32>,
    /// The indices of the GPUs of a joint device, in order: the recorded ones if a GPU is gone.
    pub joint_gpus: Vec<u32>,
    /// Its part of the GPU; `None` for a whole GPU, and for a device that does not exist or cannot be seen.
    pub part: Option<DevicePart>,
    pub presence: Presence,
    /// Its record and daemon.
    pub served: Option<Served>,
    /// The processes that compute on it; `None` if they are hidden, or were not read.
    pub processes: Option<Processes>,
    /// Programs that compute on it outside MPS. Read with `Detail::outside_mps`.
    pub outside_mps: Vec<OutsideMps>,
    /// The processes of [`processes_outside_mps`](Self::processes_outside_mps) that `/proc` shows. Read wherever processes are.
    pub strangers: Vec<Holder>,
    /// Servers in the caller's run directory that outlived its daemons. Read wherever processes are.
    pub strays: Vec<Stray>,
}

/// A MIG device's part of its GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePart {
    pub gpu_instance: GpuInstanceId,
    pub compute_instance: ComputeInstanceId,
    /// `3g.40gb`, or `1c.3g.40gb` if the compute instance has only some of the SMs.
    pub title: String,
    /// The placement of the GPU instance.
    pub placement: Placement,
    /// The number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// Memory of the GPU instance in MiB, shared by its compute instances.
    pub memory_mib: u64,
}

/// The presence of a device on the node.
#[derive(Clone, Debug)]
pub enum Presence {
    /// It exists, and has the recorded UUID if it has a record.
    There,
    /// It exists, and was made again after its record: with another UUID.
    MadeAgain,
    /// It does not exist.
    Gone,
    /// It cannot be seen.
    Unseen(Unseen),
}

impl Device {
    /// Returns a device that exists, of which nothing else is known yet.
    pub(super) fn new(name: String, key: DeviceKey, uuid: String, gpu: u32) -> Self {
        Self {
            name,
            key,
            uuid,
            gpu: Some(gpu),
            joint_gpus: Vec::new(),
            part: None,
            presence: Presence::There,
            served: None,
            processes: None,
            outside_mps: Vec::new(),
            strangers: Vec::new(),
            strays: Vec::new(),
        }
    }

    /// Returns several whole GPUs as one device that exists, of which nothing else is known yet. Its UUID is its name.
    pub fn from_gpus(gpus: &[&Gpu]) -> Self {
        let uuids = gpus.iter().map(|gpu| gpu.uuid.clone());
        let key = DeviceKey::for_joint_device(uuids.collect());
        let uuid = key.joint_uuid();
        let indices: Vec<u32> = gpus.iter().map(|gpu| gpu.index).collect();
        let first = indices.first().copied().unwrap_or_default();
        Self {
            joint_gpus: indices,
            ..Self::new(uuid.clone(), key, uuid, first)
        }
    }

    /// Returns a device of which only the record is known.
    pub fn recorded(served: Served) -> Self {
        let record = &served.record;
        let (name, key, uuid) = (&record.name, &record.key, &record.uuid);
        let device = Self::new(name.clone(), key.clone(), uuid.clone(), 0);
        Self {
            gpu: record.gpu,
            joint_gpus: record.joint_gpus.clone(),
            presence: Presence::Unseen(Unseen::Driver(None)),
            served: Some(served),
            ..device
        }
    }

    /// True if it exists.
    pub fn exists(&self) -> bool {
        matches!(self.presence, Presence::There | Presence::MadeAgain)
    }

    /// True if it exists, with the recorded UUID if it has a record.
    pub fn is_there(&self) -> bool {
        matches!(self.presence, Presence::There)
    }

    /// True if the recorded device does not exist, or was made again.
    pub fn is_gone(&self) -> bool {
        matches!(self.presence, Presence::Gone | Presence::MadeAgain)
    }

    /// Returns the reason why its GPU cannot be read.
    pub fn lost_gpu_reason(&self) -> Option<&str> {
        match &self.presence {
            Presence::Unseen(Unseen::Gpu { why, .. }) => Some(why),
            _ => None,
        }
    }

    /// Returns its profile name, such as `3g.40gb`; `None` if it does not exist. A joint device of which a GPU is lost keeps it.
    pub fn profile_name(&self) -> Option<&str> {
        let of_gpus = if self.key.is_joint() {
            "joint GPUs"
        } else {
            "whole GPU"
        };
        let title = self.part.as_ref().map_or(of_gpus, |part| &part.title);
        let is_known = self.exists() || self.key.is_joint() && !self.is_gone();
        is_known.then_some(title)
    }

    /// Returns the UUIDs by which the driver knows it: those of all GPUs of a joint device.
    pub fn driver_uuids(&self) -> &[String] {
        self.key.driver_uuids(&self.uuid)
    }

    /// Returns the indices of its GPUs, as far as they are known.
    pub fn gpu_indices(&self) -> &[u32] {
        if self.joint_gpus.is_empty() {
            self.gpu.as_slice()
        } else {
            &self.joint_gpus
        }
    }

    /// Returns its memory, if the driver tells it.
    pub fn memory(&self) -> Option<Memory> {
        self.processes.as_ref()?.memory
    }

    /// Returns the memory of the GPU of a joint device at this position, if the driver tells it.
    pub fn memory_of_gpu(&self, position: usize) -> Option<Memory> {
        let memories = &self.processes.as_ref()?.memory_of_gpus;
        *memories.get(position)?
    }

    /// Returns the memory of each of its GPUs, which are of one product, if the driver tells it.
    pub fn memory_of_each_gpu(&self) -> Option<Memory> {
        let gpus = self.key.gpus().len() as u64;
        self.memory().map(|memory| Memory {
            total: memory.total / gpus,
            used: memory.used / gpus,
        })
    }

    /// True for a whole GPU, or several.
    pub fn is_whole(&self) -> bool {
        self.key.instance.is_none()
    }

    /// Returns the users that its daemon serves, as recorded.
    pub fn serve_setting(&self) -> Option<&Serve> {
        self.served.as_ref()?.record.settings.serve.as_ref()
    }

    /// Returns its record if its daemon runs, or may run.
    pub fn live_daemon(&self) -> Option<&Served> {
        self.served.as_ref().filter(|served| served.is_alive())
    }

    /// Returns its record if its servers and clients are known.
    pub fn daemon_with_known_clients(&self) -> Option<&Served> {
        self.live_daemon()
            .filter(|served| served.clients.are_known())
    }

    /// True if a program computes on it, or waits for it, as far as is known.
    pub fn is_in_use(&self) -> bool {
        let served = self.served.as_ref();
        !self.outside_mps.is_empty()
            || served.is_some_and(|served| {
                !served.clients.as_slice().is_empty() || !served.waiting.is_empty()
            })
    }

    /// Returns the record of the daemon that serves it under its present UUID, or may.
    pub fn serving_daemon(&self) -> Option<&Served> {
        self.live_daemon()
            .filter(|served| served.record.uuid == self.uuid)
    }

    /// The processes that compute on it and are neither servers nor clients of its daemon, nor idle servers that
    /// outlived one. What they do there is outside the daemon's MPS: they are programs, or servers of unmanaged
    /// daemons.
    pub fn processes_outside_mps(&self) -> Vec<Pid> {
        let Some(processes) = &self.processes else {
            return Vec::new();
        };
        let is_known = |pid: Pid| {
            self.serving_daemon()
                .is_some_and(|served| served.has_program(pid))
                || processes.contains_client(pid)
                || self
                    .strays
                    .iter()
                    .any(|stray| stray.is_idle() && stray.server.pid == pid)
        };
        processes
            .compute
            .iter()
            .map(|usage| usage.pid)
            .filter(|&pid| !is_known(pid))
            .collect()
    }

    /// Describes some of those processes, such as `pid 4711 (alice, python train.py, session-3.scope)`; `None` for none.
    pub fn describe_processes(&self, pids: &[Pid]) -> Option<String> {
        let words: Vec<String> = pids
            .iter()
            .map(|pid| {
                self.strangers
                    .iter()
                    .find(|stranger| stranger.pid == *pid)
                    .map_or_else(|| format!("pid {pid}"), Holder::to_string)
            })
            .collect();
        (!words.is_empty()).then(|| join_words(&words, "and"))
    }
}
