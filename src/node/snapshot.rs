//! The snapshot of a node.

use std::collections::{BTreeMap, BTreeSet};

use super::device_word::{Candidate, device_order, select};
use super::{Detail, Device, Gpu, NoSuchDevice, OutsideMps, Served, Stray, Unmanaged};
use crate::catalog::Model;
use crate::host::Pid;
use crate::mps::ControlProgram;
use crate::nvml::{NvmlError, Processes};
use crate::state::{Created, DeviceKey, Journal, RunDir};

/// A snapshot of the node.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// The driver's version.
    pub driver: String,
    /// The CUDA version of the driver, 1000 × major + 10 × minor; read with `Detail::facts`.
    pub cuda_version: Option<u32>,
    /// The id of the current boot.
    pub boot_id: String,
    /// Every GPU that the driver shows, by index.
    pub gpus: Vec<Gpu>,
    /// Every device with a record in a run directory, in the order of [`device_order`].
    pub served: Vec<Served>,
    /// The processes that compute on each device, by its UUID. Devices whose lists are hidden are left out.
    pub processes: BTreeMap<String, Processes>,
    /// The GPU and compute instances that mig-mps made.
    pub created: Vec<Created>,
    /// Changes in progress.
    pub under_way: Vec<Journal>,
    /// True if the caller may not read a journal: a change is in progress, or was killed half-way.
    pub may_be_changing: bool,
    /// Changes that were killed half-way, and the run directories with their journals.
    pub interrupted: Vec<(RunDir, Journal)>,
    /// The UUIDs of the GPUs whose MIG mode mig-mps switched on.
    pub switched_on: Vec<String>,
    /// Device directories whose record cannot be read, with the reason: a daemon may use them.
    pub unreadable: Vec<(RunDir, String)>,
    /// The devices in such directories, as far as these tell what they are: for their end alone.
    pub lost_records: Vec<Served>,
    /// Run directories that cannot be read; they are in `unreadable`, too.
    pub unseen_run_dirs: Vec<UnseenRunDir>,
    /// Descriptions of everything that could not be read, `lost` included.
    pub hidden: Vec<String>,
    /// The GPUs that are lost or cannot be read.
    pub lost: Vec<Lost>,
    /// MPS programs that mig-mps did not start. Read wherever processes are.
    pub unmanaged: Vec<Unmanaged>,
    /// Servers in the caller's run directory that outlived their daemons. Read wherever processes are.
    pub strays: Vec<Stray>,
    /// Programs that compute outside MPS. Read with `Detail::outside_mps`.
    pub outside_mps: Vec<OutsideMps>,
    /// The amount of detail that was read.
    pub detail: Detail,
    /// The error of a driver that did not answer.
    pub driver_error: Option<NvmlError>,
    /// True if the driver did not answer: devices are known by their records alone.
    pub has_no_driver: bool,
}

/// A GPU that is lost or cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Its index; `None` for all, because the driver does not answer.
    pub index: Option<u32>,
    /// The driver's error, which names the GPU.
    pub why: String,
}

/// A run directory that cannot be read: daemons may run there that nobody sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnseenRunDir {
    pub run_dir: RunDir,
    /// The error, which names the directory.
    pub why: String,
    /// The remedy, if there is one.
    pub hint: Option<String>,
}

impl Node {
    /// Returns an imaginary node with GPUs of these models at these indices: MIG off, no daemons.
    pub fn of_models<'a>(gpus: impl IntoIterator<Item = (u32, &'a Model)>) -> Self {
        Self {
            gpus: gpus
                .into_iter()
                .map(|(index, model)| Gpu::of_model(index, model))
                .collect(),
            ..Self::default()
        }
    }

    /// Describes the GPU instances that a change destroyed and that do not exist now.
    pub fn missing_after(&self, journal: &Journal) -> Vec<String> {
        let mut missing = Vec::new();
        for taken in &journal.taken {
            let Some(gpu) = self.gpu(&taken.gpu) else {
                continue;
            };
            let mut instances = gpu.instances.iter();
            if !instances
                .any(|one| one.placement == taken.placement && one.profile == taken.profile)
            {
                let (index, name, placement) = (gpu.index, &taken.name, taken.placement);
                missing.push(format!("GPU {index} {name} at {placement}"));
            }
        }
        missing
    }

    /// Describes the changes that were killed half-way.
    pub fn interrupted(&self) -> Vec<String> {
        self.interrupted
            .iter()
            .map(|(_, journal)| match self.missing_after(journal) {
                missing if missing.is_empty() => format!("interrupted: {journal}"),
                missing => format!("interrupted: {journal}; missing: {}", missing.join(", ")),
            })
            .collect()
    }

    /// True if a change is in progress, as far as the caller may know.
    pub fn is_changing(&self) -> bool {
        self.may_be_changing || !self.under_way.is_empty()
    }

    /// Returns the features of the driver's MPS control program.
    pub fn control_program(&self) -> ControlProgram {
        ControlProgram::of(&self.driver)
    }

    /// Returns the GPU with that UUID.
    pub fn gpu(&self, uuid: &str) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.uuid == uuid)
    }

    /// Returns every device of every GPU.
    pub fn devices(&self) -> impl Iterator<Item = Device> {
        self.gpus.iter().flat_map(Gpu::devices)
    }

    /// Returns the device's record and daemon, if it has any: those that were made with its present UUID, else with an
    /// earlier one.
    pub fn served_on(&self, key: &DeviceKey) -> Option<&Served> {
        let mut served = self.served.iter().filter(|one| one.record.key == *key);
        let present = served.clone().find(|one| one.is_there());
        present.or_else(|| served.next())
    }

    /// True if a device was served in this boot and nobody is changing it: if it is gone, it is missed.
    pub fn misses(&self, served: &Served) -> bool {
        served.is_alive() || served.record.boot_id == self.boot_id && !self.is_changing()
    }

    /// Describes everything that cannot be seen.
    pub fn unseen(&self) -> Vec<String> {
        let hidden = self
            .gpus
            .iter()
            .filter(|gpu| gpu.hidden.is_some())
            .map(|gpu| {
                format!(
                    "the MIG devices of GPU {}, which the driver shows to root alone",
                    gpu.index
                )
            });
        self.hidden.iter().cloned().chain(hidden).collect()
    }

    /// Returns the served device with that name.
    pub fn served_as(&self, name: &str) -> Option<&Served> {
        self.served.iter().find(|served| served.record.name == name)
    }

    /// Returns the reason why daemons may run that cannot be seen: a run directory cannot be read.
    pub fn unseen_daemons(&self) -> Option<&str> {
        self.unseen_run_dirs
            .first()
            .map(|unseen| unseen.why.as_str())
    }

    /// True if a daemon may serve the device with this UUID, and its record cannot be read.
    pub fn may_be_served(&self, uuid: &str) -> bool {
        let mut lost = self.lost_records.iter();
        self.unseen_daemons().is_some() || lost.any(|served| served.record.uuid == uuid)
    }

    /// Returns the record of the device with this UUID if its daemon runs, or may run.
    pub fn serving(&self, uuid: &str) -> Option<&Served> {
        let mut served = self.served.iter();
        served.find(|served| served.record.uuid == uuid && served.is_alive())
    }

    /// The compute mode that a device had before a daemon of this boot changed it.
    pub fn mode_before(&self, uuid: &str, run_dir: &RunDir) -> Option<u32> {
        let mut served = self.served.iter();
        let earlier = served.find(|served| {
            let record = &served.record;
            record.uuid == uuid && record.boot_id == self.boot_id && served.run_dir == *run_dir
        });
        earlier?.record.compute_mode_before
    }

    /// The processes that compute on a device and are neither servers nor clients of its daemon, nor idle servers that
    /// outlived one. What they do there is outside the daemon's MPS: they are programs, or servers of unmanaged
    /// daemons.
    pub fn unaccounted_for(&self, uuid: &str) -> Vec<Pid> {
        let Some(processes) = self.processes.get(uuid) else {
            return Vec::new();
        };
        let served = self.serving(uuid);
        let mut pids: Vec<Pid> = processes
            .compute
            .iter()
            .map(|usage| Pid(usage.pid))
            .collect();
        pids.retain(|&pid| {
            let mut strays = self.strays.iter();
            let is_known = served.is_some_and(|served| served.has_program(pid))
                || processes.clients.iter().any(|usage| usage.pid == pid.0)
                || strays.any(|stray| stray.is_idle() && stray.server.pid == pid);
            !is_known
        });
        pids
    }

    /// Returns the command by which root runs `mig-mps VERB NAME` as the user whose daemon serves the device.
    pub fn managed_by(&self, name: &str, verb: &str) -> Option<String> {
        let mut devices = self.devices();
        let device = devices.find(|device| self.name_of(device) == name)?;
        self.unmanaged
            .iter()
            .filter(|daemon| daemon.devices.contains(&device.uuid))
            .find_map(|daemon| daemon.managed_by(&format!("{verb} {name}")))
    }

    /// Returns a device's recorded name, or its default name; its UUID if another device has that name.
    pub fn name_of(&self, device: &Device) -> String {
        let name = match self.served_on(&device.key) {
            Some(served) => &served.record.name,
            None if self.served_as(&device.default_name).is_some() => &device.uuid,
            None => &device.default_name,
        };
        name.clone()
    }

    /// Returns the name of the device with this UUID, or the UUID if there is none.
    pub fn name_of_uuid(&self, uuid: &str) -> String {
        let mut devices = self.devices();
        let device = devices.find(|device| device.uuid == uuid);
        device.map_or_else(|| uuid.to_owned(), |device| self.name_of(&device))
    }

    /// Returns the reason why a record cannot be read.
    fn unread(&self) -> Option<String> {
        self.unreadable.first().map(|(_, why)| why.clone())
    }

    /// Returns the names of the devices that the words of a command line mean, each once.
    pub fn resolve(&self, words: &[String]) -> Result<Vec<String>, NoSuchDevice> {
        // By place; a device that was made again has its present UUID and the recorded one.
        let mut all: BTreeMap<_, (String, Vec<String>)> = BTreeMap::new();
        let present = self.devices().map(|device| {
            let name = self.name_of(&device);
            let place = device_order(Some(device.gpu), &device.key, &name);
            (place, name, device.uuid)
        });
        let recorded = self.served.iter().map(|served| {
            let record = &served.record;
            let gpu = self.gpu(&record.key.gpu).map(|gpu| gpu.index);
            let place = device_order(gpu.or(record.gpu), &record.key, &record.name);
            (place, record.name.clone(), record.uuid.clone())
        });
        for (place, name, uuid) in present.chain(recorded) {
            let (_, uuids) = all.entry(place).or_insert_with(|| (name, Vec::new()));
            uuids.push(uuid);
        }
        let mut names: Vec<String> = Vec::new();
        for word in words {
            let candidates = all.values().map(|(name, uuids)| Candidate {
                value: name,
                name: Some(name),
                uuids: uuids.iter().map(String::as_str).collect(),
            });
            let selected = select(word, candidates.collect()).map_err(|error| match error {
                NoSuchDevice::Unknown { wanted, known } if self.has_no_driver => {
                    NoSuchDevice::NotServed {
                        wanted,
                        known,
                        unread: self.unread(),
                    }
                }
                error => error,
            })?;
            for name in selected {
                if !names.contains(name) {
                    names.push(name.clone());
                }
            }
        }
        Ok(names)
    }

    /// Returns the names of the devices of the GPU with this index, those that are gone included; never none.
    pub fn names_on(&self, index: u32) -> Result<Vec<String>, NoSuchDevice> {
        let gpu = self.gpus.iter().find(|gpu| gpu.index == index);
        let devices = gpu.map(Gpu::devices).unwrap_or_default();
        let mut names: Vec<String> = devices.iter().map(|device| self.name_of(device)).collect();
        let lost = self.lost.iter().find(|lost| lost.index == Some(index));
        let is_unseen = self.has_no_driver || lost.is_some();
        for served in &self.served {
            let record = &served.record;
            let is_on_it = match gpu {
                Some(gpu) => gpu.uuid == record.key.gpu,
                None => is_unseen && record.gpu == Some(index),
            };
            if is_on_it && !names.contains(&record.name) {
                names.push(record.name.clone());
            }
        }
        if let Some(lost) = lost.filter(|_| names.is_empty()) {
            return Err(NoSuchDevice::Lost(lost.why.clone()));
        }
        if names.is_empty() {
            let mut known: BTreeSet<u32> = self.gpus.iter().map(|gpu| gpu.index).collect();
            if self.has_no_driver {
                known.extend(self.served.iter().filter_map(|served| served.record.gpu));
            }
            let gpus = known.into_iter().collect();
            return Err(if self.has_no_driver {
                NoSuchDevice::NoneServedOn {
                    index,
                    gpus,
                    unread: self.unread(),
                }
            } else {
                NoSuchDevice::OfGpu { index, gpus }
            });
        }
        Ok(names)
    }
}
