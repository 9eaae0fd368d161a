use super::device::{Device, DevicePart};
use crate::geometry::{GpuInstanceProfile, ProfileId, Segment, SliceMap};
use crate::nvml::{ComputeInstanceReading, GpuInstanceReading, GpuReading, Memory, MigMode};
use crate::state::{DeviceKey, InstanceKey};

/// One GPU and its geometry.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// NVML's index, in PCI order.
    pub index: u32,
    /// `GPU-…`
    pub uuid: String,
    /// `NVIDIA A100-SXM4-80GB`
    pub product: String,
    /// `0000:17:00.0`
    pub pci: String,
    /// `None` where the driver does not tell the caller, or was not asked.
    pub memory: Option<Memory>,
    /// How much of the last sampling period it was computing, in percent; `None` in MIG mode, where no
    /// driver tells, and where it was not asked.
    pub utilization: Option<u32>,
    /// Its compute mode by NVML's number; `None` in MIG mode, and where it was not asked.
    pub compute_mode: Option<u32>,
    /// `None` for a GPU that has no MIG.
    pub mig: Option<MigMode>,
    /// Whether its MIG mode changes without a reset; `None` where nobody has asked.
    pub resetless: Option<bool>,
    /// What it offers, as far as the [`Look`](super::Look) asked; with `Look::Status` only what it has, and without
    /// places.
    pub profiles: Vec<GpuInstanceProfile>,
    /// Its GPU instances, by placement; with [`Look::Status`](super::Look::Status) only those that hold
    /// MIG devices.
    pub instances: Vec<GpuInstanceReading>,
    /// Why its instances cannot be seen, if they cannot.
    pub hidden: Option<String>,
}

impl Gpu {
    pub(super) fn new(reading: GpuReading, offers: Vec<GpuInstanceProfile>) -> Self {
        Self {
            index: reading.index,
            uuid: reading.uuid,
            product: reading.product,
            pci: reading.pci,
            memory: reading.memory,
            utilization: None,
            compute_mode: None,
            mig: reading.mig,
            resetless: None,
            profiles: offers,
            instances: Vec::new(),
            hidden: None,
        }
    }

    /// Whether it is partitioned now.
    pub fn in_mig_mode(&self) -> bool {
        self.mig.is_some_and(|mode| mode.current)
    }

    /// Its placement units: 8 on A100 and H100, 4 on A30, 12 on RTX PRO 6000.
    pub fn units(&self) -> u32 {
        let ends = self.profiles.iter().flat_map(|profile| &profile.placements);
        ends.map(|placement| placement.end()).max().unwrap_or(0)
    }

    /// The profile with that id.
    pub fn profile(&self, id: ProfileId) -> Option<&GpuInstanceProfile> {
        self.profiles.iter().find(|profile| profile.id == id)
    }

    /// Who occupies its placement units.
    pub fn slice_map(&self) -> SliceMap {
        let all: Vec<_> = self.instances.iter().collect();
        SliceMap::new(self.units(), self.segments_of(&all))
    }

    /// Some of its instances as segments of a slice map.
    pub fn segments_of(&self, instances: &[&GpuInstanceReading]) -> Vec<Segment> {
        instances
            .iter()
            .map(|instance| Segment {
                placement: instance.placement,
                label: self.title(instance, None),
            })
            .collect()
    }

    /// What daemons can serve on it: its MIG devices, or itself.
    pub fn devices(&self) -> Vec<Device> {
        if !self.in_mig_mode() {
            return vec![Device {
                key: DeviceKey {
                    gpu: self.uuid.clone(),
                    instance: None,
                },
                uuid: self.uuid.clone(),
                gpu: self.index,
                default_name: self.index.to_string(),
                part: None,
            }];
        }
        self.instances
            .iter()
            .flat_map(|instance| self.parts(instance))
            .collect()
    }

    fn parts(&self, instance: &GpuInstanceReading) -> Vec<Device> {
        let compute = instance.compute.iter().enumerate();
        compute
            .filter_map(|(nth, compute)| {
                let profile = self.profile(instance.profile)?;
                let mut default_name = format!("{}.{}", self.index, instance.placement.start);
                if instance.compute.len() > 1 {
                    default_name = format!("{default_name}.c{nth}");
                }
                Some(Device {
                    key: DeviceKey {
                        gpu: self.uuid.clone(),
                        instance: Some(InstanceKey {
                            profile: instance.profile,
                            placement: instance.placement,
                            compute: compute.placement,
                        }),
                    },
                    uuid: compute.uuid.clone(),
                    gpu: self.index,
                    default_name,
                    part: Some(DevicePart {
                        gpu_instance: instance.id,
                        compute_instance: compute.id,
                        profile: profile.name.clone(),
                        title: self.title(instance, Some(compute)),
                        placement: instance.placement,
                        multiprocessors: compute.multiprocessors,
                        memory_mib: profile.memory_mib,
                    }),
                })
            })
            .collect()
    }

    /// `3g.40gb`, or `1c.3g.40gb` for a compute instance with only part of the SMs.
    fn title(
        &self,
        instance: &GpuInstanceReading,
        compute: Option<&ComputeInstanceReading>,
    ) -> String {
        let Some(profile) = self.profile(instance.profile) else {
            return format!("profile {}", instance.profile);
        };
        match compute {
            Some(compute) if compute.multiprocessors < profile.multiprocessors => {
                format!("{}c.{}", compute.slices, profile.name)
            }
            _ => profile.name.to_string(),
        }
    }
}
