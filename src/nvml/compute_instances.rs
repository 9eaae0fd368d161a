//! Compute instances.

use std::ffi::c_uint;

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstancePlacement_t, nvmlGpuInstance_t,
};

use super::ffi::{handle, symbol};
use super::session::numbered;
use super::{NvmlError, Session};
use crate::geometry::{
    ComputeInstanceId, ComputeInstanceProfile, ComputeProfileId, GpuInstanceId, Placement,
};

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
        let read = |query| {
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
        };
        numbered(MOST_COMPUTE_PROFILES, read).collect()
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
