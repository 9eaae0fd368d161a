//! GPU instances, compute instances, and MIG devices as CUDA sees them.

use std::ffi::c_uint;

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstancePlacement_t, nvmlGpuInstance_t,
    nvmlGpuInstancePlacement_t,
};

use super::library::{handle, numbered, symbol};
use super::{Code, NvmlError, Session};
use crate::geometry::{
    ComputeInstanceId, ComputeInstanceProfile, ComputeProfileId, GpuInstanceId, GpuInstanceProfile,
    Placement, ProfileId,
};

/// A GPU instance and the compute instances in it.
#[derive(Clone, Debug)]
pub struct GpuInstanceReading {
    pub id: GpuInstanceId,
    pub profile: ProfileId,
    pub placement: Placement,
    /// The compute instances, by placement. CUDA does not see a GPU instance without any.
    pub compute: Vec<ComputeInstanceReading>,
    /// The compute instance profiles that it supports; empty if they were not read.
    pub offered: Vec<ComputeInstanceProfile>,
}

impl Session {
    /// Returns the GPU instances of a GPU, by placement; none while MIG is off.
    ///
    /// # Errors
    /// `NO_PERMISSION` if the driver shows instances only to root.
    pub fn read_instances(
        &self,
        gpu: &str,
        profiles: &[GpuInstanceProfile],
    ) -> Result<Vec<GpuInstanceReading>, NvmlError> {
        let device = self.device(gpu)?;
        let mut instances = Vec::new();
        for profile in profiles {
            for instance in self.gpu_instances(&device, gpu, profile)? {
                instances.push(self.read_gpu_instance(instance, gpu)?);
            }
        }
        instances.sort_by_key(|instance| instance.placement);
        Ok(instances)
    }

    /// Creates a GPU instance at a placement.
    ///
    /// # Errors
    /// `INSUFFICIENT_RESOURCES` if the placement is in use.
    pub fn create_gpu_instance(
        &self,
        gpu: &str,
        profile: ProfileId,
        at: Placement,
    ) -> Result<GpuInstanceId, NvmlError> {
        let device = self.device(gpu)?;
        let placement = nvmlGpuInstancePlacement_t {
            start: at.start,
            size: at.size,
        };
        let symbol = symbol!(self, nvmlDeviceCreateGpuInstanceWithPlacement);
        let instance = self.get(symbol, gpu, |function, instance| {
            // SAFETY: the handle came from this library; `placement` outlives the call.
            unsafe { function(handle(&device), profile.0, &raw const placement, instance) }
        })?;
        match self.read_gpu_instance_alone(instance, gpu) {
            Ok(reading) => Ok(reading.id),
            // An instance without a number cannot be used, so it must not stay.
            Err(error) => Err(error.after(self.destroy(instance, gpu))),
        }
    }

    /// Destroys a GPU instance without compute instances.
    ///
    /// # Errors
    /// `IN_USE` while it has a compute instance or a process uses it.
    pub fn destroy_gpu_instance(
        &self,
        gpu: &str,
        instance: GpuInstanceId,
    ) -> Result<(), NvmlError> {
        match self.gpu_instance(gpu, instance) {
            Ok(found) => self.destroy(found, &format!("{gpu} GPU instance {instance}")),
            Err(error) => error.ok_if_gone(),
        }
    }

    fn destroy(&self, instance: nvmlGpuInstance_t, subject: &str) -> Result<(), NvmlError> {
        self.call(symbol!(self, nvmlGpuInstanceDestroy), subject, |function| {
            // SAFETY: the instance came from this library and is not used afterwards.
            unsafe { function(instance) }
        })
    }

    pub(super) fn gpu_instance(
        &self,
        gpu: &str,
        id: GpuInstanceId,
    ) -> Result<nvmlGpuInstance_t, NvmlError> {
        let device = self.device(gpu)?;
        self.gpu_instance_of(&device, gpu, id)
    }

    pub(super) fn gpu_instance_of(
        &self,
        device: &Device<'_>,
        gpu: &str,
        id: GpuInstanceId,
    ) -> Result<nvmlGpuInstance_t, NvmlError> {
        let subject = format!("{gpu} GPU instance {id}");
        let symbol = symbol!(self, nvmlDeviceGetGpuInstanceById);
        self.get(symbol, &subject, |function, found| {
            // SAFETY: the handle came from this library.
            unsafe { function(handle(device), id.0, found) }
        })
    }

    fn gpu_instances(
        &self,
        device: &Device<'_>,
        gpu: &str,
        profile: &GpuInstanceProfile,
    ) -> Result<Vec<nvmlGpuInstance_t>, NvmlError> {
        // `nvml.h` requires room for the profile's instanceCount, which is wrong on A30. There can never be more than one
        // per placement.
        let room = profile.placements.len().max(profile.most as usize).max(16);
        let symbol = symbol!(self, nvmlDeviceGetGpuInstances);
        let found = self.list(symbol, gpu, room, |function, count, found| {
            // SAFETY: the handle came from this library; the buffer has more room than instances of one profile fit on
            // a GPU.
            unsafe { function(handle(device), profile.id.0, found, count) }
        });
        match found {
            // MIG is off.
            Err(error) if error.code() == Some(Code::NOT_SUPPORTED) => Ok(Vec::new()),
            found => found,
        }
    }

    fn read_gpu_instance(
        &self,
        instance: nvmlGpuInstance_t,
        gpu: &str,
    ) -> Result<GpuInstanceReading, NvmlError> {
        let mut reading = self.read_gpu_instance_alone(instance, gpu)?;
        let subject = format!("{gpu} GPU instance {}", reading.id);
        reading.offered = self.compute_profiles(instance, &subject)?;
        for profile in &reading.offered {
            for found in self.compute_instances(instance, &subject, profile)? {
                let compute = self.read_compute_instance(found, &subject)?;
                reading.compute.push(compute);
            }
        }
        reading.compute.sort_by_key(|compute| compute.placement);
        Ok(reading)
    }

    /// Reads a GPU instance without its compute instances.
    pub(super) fn read_gpu_instance_alone(
        &self,
        instance: nvmlGpuInstance_t,
        gpu: &str,
    ) -> Result<GpuInstanceReading, NvmlError> {
        let symbol = symbol!(self, nvmlGpuInstanceGetInfo);
        let info = self.get(symbol, gpu, |function, info| {
            // SAFETY: the instance came from this library.
            unsafe { function(instance, info) }
        })?;
        Ok(GpuInstanceReading {
            id: GpuInstanceId(info.id),
            profile: ProfileId(info.profileId),
            placement: Placement::new(info.placement.start, info.placement.size),
            compute: Vec::new(),
            offered: Vec::new(),
        })
    }
}

/// A compute instance. With its GPU instance it is a MIG device.
#[derive(Clone, Debug)]
pub struct ComputeInstanceReading {
    /// The driver's number within the GPU instance.
    pub id: ComputeInstanceId,
    pub profile: ComputeProfileId,
    /// `MIG-…`: opaque, and may change at a reboot.
    pub uuid: String,
    /// In compute slices of the GPU instance.
    pub placement: Placement,
    /// Compute slices.
    pub slices: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
}

/// `NVML_COMPUTE_INSTANCE_PROFILE_*` run from 0; 9 are known as of NVML 13.3.
const MOST_COMPUTE_PROFILES: u32 = 32;

/// More than there are compute slices in any GPU instance.
const MOST_COMPUTE_PLACEMENTS: usize = 32;

/// `NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED`, the only one there is.
const ENGINES_SHARED: u32 = 0;

impl Session {
    /// Returns the compute instance profiles that a GPU instance supports.
    pub fn offered(
        &self,
        gpu: &str,
        instance: GpuInstanceId,
    ) -> Result<Vec<ComputeInstanceProfile>, NvmlError> {
        let found = self.gpu_instance(gpu, instance)?;
        self.compute_profiles(found, &format!("{gpu} GPU instance {instance}"))
    }

    /// Creates a compute instance at a placement, or where the driver chooses.
    ///
    /// # Errors
    /// `INSUFFICIENT_RESOURCES` if the placement is in use.
    pub fn create_compute_instance(
        &self,
        gpu: &str,
        instance: GpuInstanceId,
        profile: ComputeProfileId,
        at: Option<Placement>,
    ) -> Result<ComputeInstanceReading, NvmlError> {
        let gpu_instance = self.gpu_instance(gpu, instance)?;
        let subject = format!("{gpu} GPU instance {instance}");
        let created = if let Some(at) = at {
            let place = nvmlComputeInstancePlacement_t {
                start: at.start,
                size: at.size,
            };
            let symbol = symbol!(self, nvmlGpuInstanceCreateComputeInstanceWithPlacement);
            self.get(symbol, &subject, |function, created| {
                // SAFETY: the instance came from this library; `place` outlives the call.
                unsafe { function(gpu_instance, profile.0, &raw const place, created) }
            })?
        } else {
            let symbol = symbol!(self, nvmlGpuInstanceCreateComputeInstance);
            self.get(symbol, &subject, |function, created| {
                // SAFETY: the instance came from this library.
                unsafe { function(gpu_instance, profile.0, created) }
            })?
        };
        // An instance that cannot be read cannot be used, so it must not stay.
        self.read_compute_instance(created, &subject)
            .map_err(|error| error.after(self.destroy_compute(created, &subject)))
    }

    /// Returns the possible placements of a profile, or none if the driver cannot list them.
    fn compute_placements(
        &self,
        instance: nvmlGpuInstance_t,
        subject: &str,
        profile: c_uint,
    ) -> Result<Vec<Placement>, NvmlError> {
        let symbol = symbol!(self, nvmlGpuInstanceGetComputeInstancePossiblePlacements);
        let room = MOST_COMPUTE_PLACEMENTS;
        let found = self.list(symbol, subject, room, |function, count, found| {
            // SAFETY: the instance came from this library; the buffer has more room than compute instances of one
            // profile have places in a GPU instance (at most 8).
            unsafe { function(instance, profile, found, count) }
        });
        match found {
            Ok(found) => Ok(found
                .into_iter()
                .map(|place| Placement::new(place.start, place.size))
                .collect()),
            Err(NvmlError::TooOld { .. } | NvmlError::Refused { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Destroys a compute instance. Succeeds if it is already gone.
    ///
    /// # Errors
    /// `IN_USE` while a process uses it.
    pub fn destroy_compute_instance(
        &self,
        gpu: &str,
        instance: GpuInstanceId,
        compute: ComputeInstanceId,
    ) -> Result<(), NvmlError> {
        let gpu_instance = match self.gpu_instance(gpu, instance) {
            Ok(found) => found,
            Err(error) => return error.ok_if_gone(),
        };
        let subject = format!("{gpu} GPU instance {instance} compute instance {compute}");
        match self.compute_instance(gpu_instance, &subject, compute) {
            Ok(found) => self.destroy_compute(found, &subject),
            Err(error) => error.ok_if_gone(),
        }
    }

    pub(super) fn compute_instance(
        &self,
        gpu_instance: nvmlGpuInstance_t,
        subject: &str,
        id: ComputeInstanceId,
    ) -> Result<nvmlComputeInstance_t, NvmlError> {
        let symbol = symbol!(self, nvmlGpuInstanceGetComputeInstanceById);
        self.get(symbol, subject, |function, found| {
            // SAFETY: the instance came from this library.
            unsafe { function(gpu_instance, id.0, found) }
        })
    }

    fn destroy_compute(
        &self,
        instance: nvmlComputeInstance_t,
        subject: &str,
    ) -> Result<(), NvmlError> {
        let symbol = symbol!(self, nvmlComputeInstanceDestroy);
        self.call(symbol, subject, |function| {
            // SAFETY: the instance came from this library and is not used afterwards.
            unsafe { function(instance) }
        })
    }

    pub(super) fn compute_profiles(
        &self,
        instance: nvmlGpuInstance_t,
        subject: &str,
    ) -> Result<Vec<ComputeInstanceProfile>, NvmlError> {
        let symbol = symbol!(self, nvmlGpuInstanceGetComputeInstanceProfileInfo);
        numbered(MOST_COMPUTE_PROFILES, |query| {
            let info = self.get(symbol, subject, |function, info| {
                // SAFETY: the instance came from this library.
                unsafe { function(instance, query, ENGINES_SHARED, info) }
            })?;
            Ok(ComputeInstanceProfile {
                id: ComputeProfileId(info.id),
                slices: info.sliceCount,
                multiprocessors: info.multiprocessorCount,
                most: info.instanceCount,
                placements: self.compute_placements(instance, subject, info.id)?,
            })
        })
        .collect()
    }

    pub(super) fn compute_instances(
        &self,
        instance: nvmlGpuInstance_t,
        subject: &str,
        profile: &ComputeInstanceProfile,
    ) -> Result<Vec<nvmlComputeInstance_t>, NvmlError> {
        let room = (profile.most as usize).max(16);
        let symbol = symbol!(self, nvmlGpuInstanceGetComputeInstances);
        self.list(symbol, subject, room, |function, count, found| {
            // SAFETY: the instance came from this library; the buffer has more room than compute instances of one
            // profile fit into a GPU instance (at most 8).
            unsafe { function(instance, profile.id.0, found, count) }
        })
    }

    pub(super) fn read_compute_instance(
        &self,
        instance: nvmlComputeInstance_t,
        subject: &str,
    ) -> Result<ComputeInstanceReading, NvmlError> {
        let symbol = symbol!(self, nvmlComputeInstanceGetInfo_v2);
        let info = self.get(symbol, subject, |function, info| {
            // SAFETY: the instance came from this library.
            unsafe { function(instance, info) }
        })?;
        // SAFETY: the call above wrote the MIG device's handle, and the library is never unloaded.
        let device = unsafe { Device::new(info.device, self.library) };
        let uuid = self.ask("nvmlDeviceGetUUID", subject, || device.uuid())?;
        let symbol = symbol!(self, nvmlDeviceGetAttributes_v2);
        let attributes = self.get(symbol, &uuid, |function, attributes| {
            // SAFETY: the handle came from this library.
            unsafe { function(handle(&device), attributes) }
        })?;
        Ok(ComputeInstanceReading {
            id: ComputeInstanceId(info.id),
            profile: ComputeProfileId(info.profileId),
            uuid,
            placement: Placement::new(info.placement.start, info.placement.size),
            slices: attributes.computeInstanceSliceCount,
            multiprocessors: attributes.multiprocessorCount,
        })
    }
}

impl Session {
    /// Returns the GPU instances that hold MIG devices, by placement, with these devices. Omits supported profiles, and
    /// GPU instances without a compute instance. This takes 9 calls per MIG device;
    /// [`read_instances`](Self::read_instances) takes about 80.
    ///
    /// # Errors
    /// `NO_PERMISSION` if the driver shows instances only to root.
    pub fn read_mig_devices(&self, gpu: &str) -> Result<Vec<GpuInstanceReading>, NvmlError> {
        let device = self.device(gpu)?;
        let symbol = symbol!(self, nvmlDeviceGetMaxMigDeviceCount);
        let most = self.get(symbol, gpu, |function, most| {
            // SAFETY: the handle came from this library.
            unsafe { function(handle(&device), most) }
        })?;
        let mut instances = Vec::new();
        for index in 0..most {
            match self.read_mig_device(&device, gpu, index, &mut instances) {
                Ok(()) => {}
                // Indices may have holes, and a device may disappear meanwhile.
                Err(error) if error.code() == Some(Code::NOT_FOUND) => {}
                Err(error) => return Err(error),
            }
        }
        for instance in &mut instances {
            instance.compute.sort_by_key(|compute| compute.placement);
        }
        instances.retain(|instance| !instance.compute.is_empty());
        instances.sort_by_key(|instance| instance.placement);
        Ok(instances)
    }

    fn read_mig_device(
        &self,
        device: &Device<'_>,
        gpu: &str,
        index: u32,
        instances: &mut Vec<GpuInstanceReading>,
    ) -> Result<(), NvmlError> {
        let subject = format!("{gpu} MIG device {index}");
        let symbol = symbol!(self, nvmlDeviceGetMigDeviceHandleByIndex);
        let mig = self.get(symbol, &subject, |function, mig| {
            // SAFETY: the handle came from this library.
            unsafe { function(handle(device), index, mig) }
        })?;
        let symbol = symbol!(self, nvmlDeviceGetGpuInstanceId);
        let instance = self.get(symbol, &subject, |function, instance| {
            // SAFETY: the call above wrote `mig`.
            unsafe { function(mig, instance) }
        })?;
        let symbol = symbol!(self, nvmlDeviceGetComputeInstanceId);
        let compute = self.get(symbol, &subject, |function, compute| {
            // SAFETY: as above.
            unsafe { function(mig, compute) }
        })?;
        let id = GpuInstanceId(instance);
        let gpu_instance = self.gpu_instance_of(device, gpu, id)?;
        let known = instances.iter().position(|known| known.id == id);
        let known = if let Some(known) = known {
            known
        } else {
            instances.push(self.read_gpu_instance_alone(gpu_instance, gpu)?);
            instances.len() - 1
        };
        let compute = ComputeInstanceId(compute);
        let found = self.compute_instance(gpu_instance, &subject, compute)?;
        let reading = self.read_compute_instance(found, &subject)?;
        instances[known].compute.push(reading);
        Ok(())
    }
}
