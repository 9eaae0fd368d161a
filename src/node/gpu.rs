//! A GPU of a snapshot.

use super::{Device, DevicePart, Node};
use crate::catalog::{self, Model};
use crate::geometry::{
    self, GpuInstanceProfile, Placement, ProfileId, ProfileName, Segment, SliceMap,
};
use crate::host::join_words;
use crate::mps::ControlProgram;
use crate::nvml::{
    ComputeInstanceReading, GpuHealth, GpuInstanceReading, GpuReading, Memory, MigMode, NvmlError,
};
use crate::settings::{DeviceSize, Multiprocessors};
use crate::state::{DeviceKey, InstanceKey, RecordedInstance};

/// One GPU and its geometry.
#[derive(Clone, Debug, Default)]
pub struct Gpu {
    /// NVML's index, in PCI order.
    pub index: u32,
    /// `GPU-…`
    pub uuid: String,
    /// `NVIDIA A100-SXM4-80GB`
    pub product: String,
    /// `0000:17:00.0`
    pub pci: String,
    /// The number in `/dev/nvidia<minor>`; `None` if it is unknown, or was not read.
    pub minor: Option<u32>,
    /// `None` if the driver hides it from the caller, or was not asked.
    pub memory: Option<Memory>,
    /// Percent of the last sampling period in which it computed; `None` in MIG mode, where no driver reports
    /// it, and if it was not read.
    pub utilization: Option<u32>,
    /// Its compute mode by NVML's number; `None` in MIG mode, and if it was not read.
    pub compute_mode: Option<u32>,
    /// `None` for a GPU without MIG.
    pub mig: Option<MigMode>,
    /// True if its MIG mode changes without a reset; `None` if that was not read.
    pub resetless: Option<bool>,
    /// Its CUDA compute capability, such as 8.0; like the next two read with `Detail::facts`.
    pub capability: Option<(u32, u32)>,
    /// True if the driver keeps it initialized while nobody uses it.
    pub is_persistent: Option<bool>,
    /// All its GPU instances, those without MIG devices included; `None` if they are hidden.
    pub all_instances: Option<Vec<GpuInstanceReading>>,
    /// The names of all profiles that it offers, or the error of reading them. Read with `Detail::facts`.
    pub offered_names: Option<Result<Vec<ProfileName>, NvmlError>>,
    /// The GPU instance profiles that it offers; without `Detail::offers` only those in use, without placements.
    pub profiles: Vec<GpuInstanceProfile>,
    /// Its GPU instances, by placement; without `Detail::all_instances` only those that hold MIG devices.
    pub instances: Vec<GpuInstanceReading>,
    /// Its health, as far as the driver tells; `None` if it was not asked.
    pub health: Option<GpuHealth>,
    /// True if virtual machines share it, and this machine is their host. Read with `Detail::all_instances` and
    /// `Detail::facts`, where it has GPU instances without compute instances.
    pub is_of_vgpu_host: bool,
    /// The reason its instances cannot be read, if there is one.
    pub hidden: Option<String>,
}

impl Gpu {
    pub(super) fn new(reading: GpuReading, offers: Vec<GpuInstanceProfile>) -> Self {
        Self {
            index: reading.index,
            uuid: reading.uuid,
            product: reading.product,
            pci: reading.pci,
            minor: reading.minor,
            memory: reading.memory,
            mig: reading.mig,
            profiles: offers,
            ..Self::default()
        }
    }

    /// Returns an imaginary GPU of a catalog model: MIG off, nothing on it.
    pub fn from_model(index: u32, model: &Model) -> Self {
        let memory = model.memory_total_mib.map(|mib| Memory {
            total: mib << 20,
            used: 0,
        });
        Self {
            index,
            // It has no UUID; a message that lists all GPUs must still tell them apart.
            uuid: format!("{}#{index}", model.key),
            product: model.product_or_default().to_owned(),
            pci: "(catalog)".to_owned(),
            minor: None,
            memory,
            mig: Some(MigMode::default()),
            profiles: model.offers(),
            ..Self::default()
        }
    }

    /// True in MIG mode without a MIG device.
    pub fn has_nothing_in_mig_mode(&self) -> bool {
        self.in_mig_mode() && self.hidden.is_none() && self.devices().is_empty()
    }

    /// True if MIG mode is on now.
    pub fn in_mig_mode(&self) -> bool {
        self.mig.is_some_and(|mode| mode.current)
    }

    /// Returns the number of its placement units: 8 on A100 and H100, 4 on A30, 12 on RTX PRO 6000.
    pub fn placement_units(&self) -> u32 {
        geometry::count_units(&self.profiles)
    }

    /// Returns the number of its compute slices; `None` if neither the catalog nor its offers tell it.
    pub fn compute_slices(&self) -> Option<u32> {
        let of_model = self
            .catalog_model()
            .into_iter()
            .flat_map(Model::profile_slices);
        let offered = self
            .profiles
            .iter()
            .filter(|offer| offer.placement_size() > 0);
        of_model.chain(offered.map(|offer| offer.slices)).max()
    }

    /// Returns the most clients of a device with so many of its compute slices, or of itself as one device.
    pub fn client_limit(&self, program: ControlProgram, slices: Option<u32>) -> Option<u32> {
        match slices {
            None => Some(program.client_limit),
            Some(slices) => Some(program.client_limit_of_instance(slices, self.compute_slices()?)),
        }
    }

    /// Returns its size as one device.
    pub fn device_size(&self) -> DeviceSize {
        let sms = self.catalog_model().and_then(|model| {
            Some(Multiprocessors {
                all: model.sm_total?,
                least: least_of_a_client(&model.architecture),
            })
        });
        let memory = self.memory.map(|memory| memory.total >> 20);
        DeviceSize::for_gpu(sms, memory)
    }

    /// Returns the size of a device in a GPU instance of this profile with so many compute instances. Its SMs are known
    /// beforehand only if it has all of the instance.
    pub fn instance_size(
        &self,
        offer: &GpuInstanceProfile,
        compute: usize,
        has_all_sms: bool,
    ) -> DeviceSize {
        let sms = match offer.multiprocessors {
            Some(all) if has_all_sms => Some(Multiprocessors { all, least: 2 }),
            _ => None,
        };
        DeviceSize::for_instance(sms, offer.memory_mib, compute as u64)
    }

    fn catalog_model(&self) -> Option<&'static Model> {
        catalog::model_with_product(&self.product)
    }

    /// Returns the profile with this id.
    pub fn profile(&self, id: ProfileId) -> Option<&GpuInstanceProfile> {
        self.profiles.iter().find(|profile| profile.id == id)
    }

    /// Returns the map of its placement units.
    pub fn slice_map(&self) -> SliceMap {
        let all: Vec<_> = self.instances.iter().collect();
        SliceMap::new(self.placement_units(), self.segments_of(&all))
    }

    /// Returns some of its instances as segments of a slice map.
    pub fn segments_of(&self, instances: &[&GpuInstanceReading]) -> Vec<Segment> {
        instances
            .iter()
            .map(|instance| Segment {
                placement: instance.placement,
                label: self.instance_title(instance, None),
            })
            .collect()
    }

    /// Returns its MIG devices, or itself if MIG mode is off, by their default names.
    pub fn devices(&self) -> Vec<Device> {
        if !self.in_mig_mode() {
            let key = DeviceKey::for_whole_gpu(&self.uuid);
            let name = self.index.to_string();
            return vec![Device::new(name, key, self.uuid.clone(), self.index)];
        }
        let mut devices = Vec::new();
        for instance in &self.instances {
            let Some(profile) = self.profile(instance.profile) else {
                continue;
            };
            for (nth, compute) in instance.compute.iter().enumerate() {
                let of = instance.compute.len();
                let name = self.default_name(instance.placement, nth, of);
                let key = DeviceKey {
                    instance: Some(InstanceKey {
                        profile: instance.profile,
                        placement: instance.placement,
                        compute: compute.placement,
                    }),
                    ..DeviceKey::for_whole_gpu(&self.uuid)
                };
                devices.push(Device {
                    part: Some(DevicePart {
                        gpu_instance: instance.id,
                        compute_instance: compute.id,
                        title: self.instance_title(instance, Some(compute)),
                        placement: instance.placement,
                        multiprocessors: compute.multiprocessors,
                        memory_mib: profile.memory_mib,
                    }),
                    ..Device::new(name, key, compute.uuid.clone(), self.index)
                });
            }
        }
        devices
    }

    /// Returns `0.4`, or `0.4.c1` where several compute instances share a GPU instance.
    pub fn default_name(&self, placement: Placement, nth: usize, of: usize) -> String {
        let name = format!("{}.{}", self.index, placement.start);
        if of > 1 {
            format!("{name}.c{nth}")
        } else {
            name
        }
    }

    /// Returns `GPU instance 3 (2g.20gb at 0:2)`.
    pub fn instance_name(&self, instance: &GpuInstanceReading) -> String {
        let (id, placement) = (instance.id, instance.placement);
        format!(
            "GPU instance {id} ({} at {placement})",
            self.instance_title(instance, None)
        )
    }

    /// Returns `3g.40gb`, or `1c.3g.40gb` for a compute instance with only some of the SMs.
    pub fn instance_title(
        &self,
        instance: &GpuInstanceReading,
        compute: Option<&ComputeInstanceReading>,
    ) -> String {
        let Some(profile) = self.profile(instance.profile) else {
            return format!("profile {}", instance.profile);
        };
        match compute {
            Some(compute) if Some(compute.multiprocessors) < profile.multiprocessors => {
                format!("{}c.{}", compute.slices, profile.name)
            }
            _ => profile.name.to_string(),
        }
    }
}

impl Node {
    /// True for a GPU instance of a virtual machine. On a host of MIG-backed vGPUs, the machine makes the compute instances itself
    /// (NVIDIA's vGPU user guide), so its GPU instance has none here. A GPU instance without compute instances is ours if mig-mps
    /// has made it and no compute instance in it. If mig-mps has made one, another tool has since made the GPU instance again.
    pub fn belongs_to_virtual_machine(&self, gpu: &Gpu, instance: &GpuInstanceReading) -> bool {
        let made: Vec<&RecordedInstance> = self
            .created
            .iter()
            .filter(|made| made.is_in(&gpu.uuid, instance.profile, instance.placement))
            .collect();
        let is_ours = !made.is_empty() && made.iter().all(|made| made.compute.is_none());
        gpu.is_of_vgpu_host && instance.compute.is_empty() && !is_ours
    }

    /// True for a GPU in MIG mode without a MIG device, if it has no instances of virtual machines either.
    pub fn is_unpartitioned(&self, gpu: &Gpu) -> bool {
        gpu.has_nothing_in_mig_mode() && self.virtual_machine_instances(gpu).is_empty()
    }

    /// Returns the GPU instances of virtual machines: nobody but the machine's administrator changes them.
    pub fn virtual_machine_instances<'g>(&self, gpu: &'g Gpu) -> Vec<&'g GpuInstanceReading> {
        gpu.all_instances
            .as_ref()
            .unwrap_or(&gpu.instances)
            .iter()
            .filter(|one| self.belongs_to_virtual_machine(gpu, one))
            .collect()
    }

    /// Names the GPU instances of virtual machines: `GPU instance 3 (2g.20gb at 0:2)`; `None` if there are none.
    pub fn describe_virtual_machine_instances(&self, gpu: &Gpu) -> Option<String> {
        let names: Vec<String> = self
            .virtual_machine_instances(gpu)
            .into_iter()
            .map(|one| gpu.instance_name(one))
            .collect();
        (!names.is_empty()).then(|| join_words(&names, "and"))
    }
}

/// The fewest SMs that a client gets of a whole GPU, measured on an H100 80GB HBM3 (driver 580.159.04): 8. Older GPUs and MIG
/// devices have not been measured; a pair is the least that any client gets.
fn least_of_a_client(architecture: &str) -> u32 {
    if architecture == "ampere" { 2 } else { 8 }
}
