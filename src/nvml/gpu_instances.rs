//! GPU instances.

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{nvmlGpuInstance_t, nvmlGpuInstancePlacement_t};

use super::compute_instances::ComputeInstanceReading;
use super::ffi::{handle, symbol};
use super::{Code, NvmlError, Session};
use crate::geometry::{
    ComputeInstanceProfile, GpuInstanceId, GpuInstanceProfile, Placement, ProfileId,
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
