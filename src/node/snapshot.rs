//! The snapshot of a node, and what it could not see.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use super::device_selector::device_order;
use super::joint::{client_limits, shared_compute_mode};
use super::{Applied, Detail, Device, Gpu, Presence, Served, Unmanaged};
use crate::catalog::Model;
use crate::failure::Problem;
use crate::host::{Host, ProcessTable, Xid};
use crate::mps::ControlProgram;
use crate::nvml::NvmlError;
use crate::settings::DeviceSize;
use crate::state::{
    AppliedProfile, DestroyedInstance, DeviceKey, DeviceRecord, Journal, RecordedInstance, RunDir,
    StoppedDevice,
};

/// A snapshot of the node.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// The driver's version.
    pub driver: String,
    /// The CUDA version of the driver, 1000 × major + 10 × minor; read with `Detail::facts`.
    pub cuda_version: Option<u32>,
    /// The system that was observed, for names that only its driver knows; `None` for an imaginary node.
    pub host: Option<Host>,
    /// The id of the current boot.
    pub boot_id: String,
    /// Every GPU that the driver shows, by index.
    pub gpus: Vec<Gpu>,
    /// Every device that exists or has a record, in the order in which every command names devices.
    pub devices: Vec<Device>,
    /// The GPU and compute instances that mig-mps made.
    pub created: Vec<RecordedInstance>,
    /// Changes in progress.
    pub under_way: Vec<Journal>,
    /// Changes that were killed half-way, and the run directories with their journals.
    pub interrupted: Vec<(RunDir, Journal)>,
    /// The UUIDs of the GPUs whose MIG mode mig-mps switched on.
    pub switched_on: Vec<String>,
    /// The parts of applied profiles that were left out.
    pub missing: Vec<Problem>,
    /// The devices that `down` has stopped by name, and their run directories. Some may be served again, or may not exist.
    pub stopped: Vec<(RunDir, StoppedDevice)>,
    /// The devices whose records cannot be read, as far as their directories tell what they are: for their end alone.
    pub lost_records: Vec<Served>,
    /// Everything that could not be seen.
    pub unseen: Vec<Unseen>,
    /// The reason why the pods that hold shares are not known; `None` if they are, or there is no device plugin.
    pub pods_unknown: Option<String>,
    /// MPS programs that mig-mps did not start. Read wherever processes are.
    pub unmanaged: Vec<Unmanaged>,
    /// The processes of MPS programs; `None` if `/proc` was not read.
    pub mps_table: Option<ProcessTable>,
    /// The recent Xids in the kernel's log, or the reason why they cannot be read; `None` if it was not read.
    pub xids: Option<Result<Vec<Xid>, String>>,
    /// The profile that was applied last. Read by `status`.
    pub applied: Applied,
    /// True if `up` without a profile makes it again as it was. Read wherever processes are.
    pub has_default_profile: bool,
    /// The applied profiles with joint devices, the last one first.
    pub joint_before: Vec<AppliedProfile>,
    /// The amount of detail that was read.
    pub detail: Detail,
}

impl Node {
    /// Returns an imaginary node with GPUs of these models at these indices: MIG off, no daemons.
    pub fn from_models<'a>(gpus: impl IntoIterator<Item = (u32, &'a Model)>) -> Self {
        let mut node = Self {
            gpus: gpus
                .into_iter()
                .map(|(index, model)| Gpu::from_model(index, model))
                .collect(),
            ..Self::default()
        };
        node.join();
        node
    }

    /// Returns the command that makes what is missing.
    pub fn up_command(&self) -> &'static str {
        if self.has_default_profile {
            "mig-mps up"
        } else {
            "mig-mps up PROFILE"
        }
    }

    /// Describes the GPU instances that a change destroyed and that do not exist now.
    pub fn missing_after(&self, journal: &Journal) -> Vec<String> {
        let mut missing = Vec::new();
        for DestroyedInstance { instance, name } in &journal.taken {
            let Some(gpu) = self.gpu_with_uuid(&instance.gpu) else {
                continue;
            };
            if !instance.is_among(&gpu.instances) {
                let (index, placement) = (gpu.index, instance.placement);
                missing.push(format!("GPU {index} {name} at {placement}"));
            }
        }
        missing
    }

    /// True if a change is in progress, as far as the caller may know.
    pub fn is_changing(&self) -> bool {
        self.may_be_changing() || !self.under_way.is_empty()
    }

    /// Returns the features of the driver's MPS control program.
    pub fn control_program(&self) -> ControlProgram {
        ControlProgram::for_driver(&self.driver)
    }

    /// Returns the GPU with that UUID.
    pub fn gpu_with_uuid(&self, uuid: &str) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.uuid == uuid)
    }

    /// Joins the devices of the GPUs with the records that are known.
    pub fn join(&mut self) {
        let mut records: Vec<Served> = std::mem::take(&mut self.devices)
            .into_iter()
            .filter_map(|device| device.served)
            .collect();
        let mut devices: Vec<Device> = self.gpus.iter().flat_map(Gpu::devices).collect();
        self.join_gpus(&mut devices, &records);
        for device in &mut devices {
            let is_of_key = |served: &Served| served.record.key == device.key;
            let nth = records
                .iter()
                .position(|served| is_of_key(served) && served.record.uuid == device.uuid)
                .or_else(|| records.iter().position(is_of_key));
            if let Some(served) = nth.map(|nth| records.remove(nth)) {
                if served.record.uuid != device.uuid {
                    device.presence = Presence::MadeAgain;
                }
                device.name.clone_from(&served.record.name);
                device.served = Some(served);
            }
        }
        for served in records {
            let presence = self.presence_of_missing(&served.record);
            let mut device = Device {
                presence,
                ..Device::recorded(served)
            };
            self.renumber_gpus(&mut device);
            devices.push(device);
        }
        self.devices = devices;
        self.name_stopped_devices();
        let recorded: BTreeSet<String> = self
            .served()
            .map(|served| served.record.name.clone())
            .collect();
        for device in &mut self.devices {
            // Without a record it has its UUID for a name, where a record has its default name.
            if device.served.is_none() && recorded.contains(&device.name) {
                device.name.clone_from(&device.uuid);
            }
            let gpu = self.gpus.iter().find(|gpu| gpu.uuid == device.key.gpu);
            if gpu.is_some() || device.is_gone() {
                device.gpu = gpu.map(|gpu| gpu.index);
            }
            let compute_mode = shared_compute_mode(&self.gpus, &device.key);
            if let Some(served) = &mut device.served {
                served.compute_mode = compute_mode;
            }
        }
        self.fill_client_limits();
        self.devices
            .sort_by_cached_key(|device| device_order(device.gpu, &device.key, &device.name));
    }

    /// Fills in how many clients each device takes, which depends on the driver.
    pub(super) fn fill_client_limits(&mut self) {
        let program = self.control_program();
        for device in &mut self.devices {
            let Some(served) = &mut device.served else {
                continue;
            };
            let key = &served.record.key;
            (served.measured_limit, served.hardware_limit) = match key.instance {
                None => client_limits(program, key),
                Some(instance) => {
                    let gpu = self.gpus.iter().find(|gpu| gpu.uuid == key.gpu);
                    let slices = Some(instance.compute.size);
                    (None, gpu.and_then(|gpu| gpu.client_limit(program, slices)))
                }
            };
        }
    }

    /// Returns the reason why a recorded device is not among those that the driver shows.
    fn presence_of_missing(&self, record: &DeviceRecord) -> Presence {
        let is_its = |unseen: &&Unseen| match unseen {
            Unseen::Driver(_) => true,
            Unseen::Instances { gpu, .. } => {
                let mut own = self.gpus_with_key(&record.key);
                own.any(|own| own.index == *gpu)
            }
            _ => false,
        };
        if let Some(unseen) = self.unseen.iter().find(is_its) {
            return Presence::Unseen(unseen.clone());
        }
        if self.gpus_with_key(&record.key).count() == record.key.gpus().len() {
            return Presence::Gone;
        }
        // A lost GPU does not tell its UUID.
        let its = self
            .lost_gpus()
            .find(|(index, _)| record.gpu == Some(*index) || record.joint_gpus.contains(index));
        match its.or_else(|| self.lost_gpus().next()) {
            Some((index, why)) => Presence::Unseen(Unseen::Gpu {
                index,
                why: why.to_owned(),
            }),
            None => Presence::Gone,
        }
    }

    /// Returns the devices that exist. A joint device that `down` has stopped does not count: its GPUs do.
    pub fn existing_devices(&self) -> impl Iterator<Item = &Device> {
        self.devices
            .iter()
            .filter(|device| device.exists() && !device.is_stopped_joint())
    }

    /// Returns the utilization of a device's GPU in percent; of several GPUs, the average. No driver reports it for MIG devices.
    pub fn gpu_utilization(&self, device: &Device) -> Option<u32> {
        if !device.is_whole() || !device.exists() {
            return None;
        }
        let gpus = self.gpus_with_key(&device.key);
        let percents: Option<Vec<u32>> = gpus.map(|gpu| gpu.utilization).collect();
        let percents = percents?;
        percents
            .iter()
            .sum::<u32>()
            .checked_div(u32::try_from(percents.len()).ok()?)
    }

    /// Returns every record, with what is known of its daemon.
    pub fn served(&self) -> impl Iterator<Item = &Served> {
        self.devices
            .iter()
            .filter_map(|device| device.served.as_ref())
    }

    /// Returns the device with that name.
    pub fn device_named(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// Returns the size of a device that can be seen.
    pub fn size_of(&self, device: &Device) -> Option<DeviceSize> {
        let gpu = self.gpu_with_uuid(&device.key.gpu)?;
        let clients = device.client_limit(gpu, self.control_program());
        let Some(key) = device.key.instance else {
            return Some(gpu.device_size().with_client_limit(clients));
        };
        let instance = gpu
            .instances
            .iter()
            .find(|instance| instance.placement == key.placement)?;
        let offer = gpu.profile(key.profile)?;
        let has_all_sms = instance
            .compute
            .iter()
            .all(|one| Some(one.multiprocessors) >= offer.multiprocessors);
        let size = gpu.instance_size(offer, instance.compute.len(), has_all_sms);
        Some(size.with_client_limit(clients))
    }

    /// Returns the devices of a GPU that exist.
    pub fn devices_of(&self, gpu: &Gpu) -> impl Iterator<Item = &Device> {
        let of_gpu = gpu.uuid.clone();
        self.existing_devices()
            .filter(move |device| device.key.has_gpu(&of_gpu))
    }

    /// Returns the device with that key, if it exists.
    pub fn device_with_key(&self, key: &DeviceKey) -> Option<&Device> {
        self.existing_devices().find(|device| device.key == *key)
    }

    /// Returns the device with that present UUID.
    pub fn device_with_uuid(&self, uuid: &str) -> Option<&Device> {
        self.existing_devices().find(|device| device.uuid == uuid)
    }

    /// True if a device was served in this boot and nobody is changing it: if it is gone, it is missed.
    pub fn expects_device(&self, served: &Served) -> bool {
        served.is_alive() || served.record.boot_id == self.boot_id && !self.is_changing()
    }

    /// Returns the record with that name.
    pub fn served_named(&self, name: &str) -> Option<&Served> {
        self.device_named(name)?.served.as_ref()
    }

    /// True if a daemon may serve the device with this UUID, and its record cannot be read.
    pub fn may_be_served(&self, uuid: &str) -> bool {
        self.unseen_daemons().is_some()
            || self
                .lost_records
                .iter()
                .any(|served| served.record.uuid == uuid || served.record.key.has_gpu(uuid))
    }

    /// The compute mode that a device had before a daemon of this boot changed it.
    pub fn compute_mode_before(&self, uuid: &str, run_dir: &RunDir) -> Option<u32> {
        let earlier = self.served().find(|served| {
            let record = &served.record;
            record.uuid == uuid && record.boot_id == self.boot_id && served.run_dir == *run_dir
        });
        earlier?.record.compute_mode_before
    }

    /// Returns the command by which root runs `mig-mps VERB NAME` as the user whose daemon serves the device.
    pub fn command_as_owner(&self, name: &str, verb: &str) -> Option<String> {
        self.unmanaged
            .iter()
            .filter(|daemon| daemon.serves_device(name))
            .find_map(|daemon| daemon.command_as_owner(&format!("{verb} {name}")))
    }

    /// Returns the reason why a record cannot be read.
    pub(super) fn first_unread_reason(&self) -> Option<&str> {
        self.unreadable_records().next().map(|(_, why)| why)
    }

    /// True if no daemon of mig-mps is there, and none can be hidden.
    pub fn has_no_daemons(&self) -> bool {
        let is_hidden = self.unseen_daemons().is_some() || self.first_unread_reason().is_some();
        !is_hidden && self.served().next().is_none()
    }

    /// Describes everything that could not be seen.
    pub fn describe_unseen(&self) -> Vec<String> {
        self.unseen.iter().map(Unseen::to_string).collect()
    }

    /// True if the driver does not answer, or was not asked: devices are known by their records alone.
    pub fn has_no_driver(&self) -> bool {
        self.unseen
            .iter()
            .any(|one| matches!(one, Unseen::Driver(_)))
    }

    /// Returns the error of a driver that does not answer.
    pub fn driver_error(&self) -> Option<&NvmlError> {
        self.unseen.iter().find_map(|one| match one {
            Unseen::Driver(error) => error.as_ref(),
            _ => None,
        })
    }

    /// Returns the indices of the GPUs that are lost or cannot be read, with the driver's error.
    pub fn lost_gpus(&self) -> impl Iterator<Item = (u32, &str)> {
        self.unseen.iter().filter_map(|one| match one {
            Unseen::Gpu { index, why } => Some((*index, why.as_str())),
            _ => None,
        })
    }

    /// Returns the run directories of records that cannot be read, with the reason.
    pub fn unreadable_records(&self) -> impl Iterator<Item = (&RunDir, &str)> {
        self.unseen.iter().filter_map(|one| match one {
            Unseen::Record { run_dir, why } | Unseen::RunDir { run_dir, why, .. } => {
                Some((run_dir, why.as_str()))
            }
            _ => None,
        })
    }

    /// Returns the reason why daemons may run that cannot be seen: a run directory cannot be read.
    pub fn unseen_daemons(&self) -> Option<&str> {
        self.unseen.iter().find_map(|one| match one {
            Unseen::RunDir { why, .. } => Some(why.as_str()),
            _ => None,
        })
    }

    /// True if a change is in progress that the caller may not see, or was killed half-way.
    pub fn may_be_changing(&self) -> bool {
        self.unseen
            .iter()
            .any(|one| matches!(one, Unseen::Journal(_)))
    }
}

/// Something that a snapshot could not see, or not all of it.
#[derive(Clone, Debug)]
pub enum Unseen {
    /// The GPUs: the driver does not answer, or nobody has asked it.
    Driver(Option<NvmlError>),
    /// A GPU that is lost or cannot be read, with the driver's error, which names it.
    Gpu { index: u32, why: String },
    /// The instances of a GPU, with the driver's error.
    Instances { gpu: u32, why: String },
    /// The record of a device: a daemon may use it. The reason names the file.
    Record { run_dir: RunDir, why: String },
    /// A run directory, which the reason names: daemons may run there that nobody sees.
    RunDir {
        run_dir: RunDir,
        why: String,
        /// The remedy, if there is one.
        hint: Option<String>,
    },
    /// The journal in this run directory: a change is in progress there, or was killed half-way.
    Journal(PathBuf),
    /// Anything else, described.
    Other(String),
}

impl Unseen {
    /// Returns the reason why a device cannot be seen.
    pub fn reason(&self) -> String {
        match self {
            Self::Driver(_) => "the driver does not answer".to_owned(),
            Self::Instances { why, .. } => why.clone(),
            other => other.to_string(),
        }
    }
}

/// Describes what is not seen: `the GPUs, since …`
impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver(Some(error)) => {
                write!(f, "the GPUs, since the driver does not answer: {error}")
            }
            Self::Driver(None) => f.write_str("the GPUs, since the driver was not asked"),
            Self::Instances { gpu, .. } => write!(
                f,
                "the MIG devices of GPU {gpu}, which the driver shows only to root"
            ),
            Self::Journal(path) => write!(
                f,
                "the change that is in progress in {}, or was interrupted",
                path.display()
            ),
            Self::Gpu { why, .. }
            | Self::Record { why, .. }
            | Self::RunDir { why, .. }
            | Self::Other(why) => f.write_str(why),
        }
    }
}
