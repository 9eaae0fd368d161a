//! Compute instances.

use std::ffi::c_uint;
use std::ptr::null_mut;

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t,
    nvmlComputeInstanceProfileInfo_t, nvmlDeviceAttributes_t, nvmlGpuInstance_t,
};

use super::ffi::handle;
use super::{Code, NvmlError, Session};
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
        let mut created: nvmlComputeInstance_t = null_mut();
        if let Some(at) = at {
            let place = nvmlComputeInstancePlacement_t {
                start: at.start,
                size: at.size,
            };
            let symbol = &self
                .symbols()
                .nvmlGpuInstanceCreateComputeInstanceWithPlacement;
            let call = "nvmlGpuInstanceCreateComputeInstanceWithPlacement";
            self.call(call, &subject, symbol, |function| {
                // SAFETY: the instance came from this library; both pointers outlive the call.
                unsafe { function(gpu_instance, profile.0, &raw const place, &raw mut created) }
            })?;
        } else {
            let symbol = &self.symbols().nvmlGpuInstanceCreateComputeInstance;
            let call = "nvmlGpuInstanceCreateComputeInstance";
            self.call(call, &subject, symbol, |function| {
                // SAFETY: the instance came from this library; `created` outlives the call.
                unsafe { function(gpu_instance, profile.0, &raw mut created) }
            })?;
        }
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
        let call = "nvmlGpuInstanceGetComputeInstancePossiblePlacements";
        let symbol = &self
            .symbols()
            .nvmlGpuInstanceGetComputeInstancePossiblePlacements;
        let none = nvmlComputeInstancePlacement_t { start: 0, size: 0 };
        let mut placements = [none; MOST_COMPUTE_PLACEMENTS];
        let mut count = c_uint::try_from(placements.len()).unwrap_or(c_uint::MAX);
        let asked = self.call(call, subject, symbol, |function| {
            // SAFETY: the instance came from this library; the buffer has more room than compute
            // instances of one profile have places in a GPU instance (at most 8).
            unsafe { function(instance, profile, placements.as_mut_ptr(), &raw mut count) }
        });
        match asked {
            Ok(()) => Ok(placements
                .iter()
                .take(count as usize)
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
        let mut found: nvmlComputeInstance_t = null_mut();
        let symbol = &self.symbols().nvmlGpuInstanceGetComputeInstanceById;
        let call = "nvmlGpuInstanceGetComputeInstanceById";
        let lookup = self.call(call, &subject, symbol, |function| {
            // SAFETY: the instance came from this library; `found` outlives the call.
            unsafe { function(gpu_instance, compute.0, &raw mut found) }
        });
        match lookup {
            Ok(()) => self.destroy_compute(found, &subject),
            Err(error) => error.ok_if_gone(),
        }
    }

    fn destroy_compute(
        &self,
        instance: nvmlComputeInstance_t,
        subject: &str,
    ) -> Result<(), NvmlError> {
        let symbol = &self.symbols().nvmlComputeInstanceDestroy;
        self.call("nvmlComputeInstanceDestroy", subject, symbol, |function| {
            // SAFETY: the instance came from this library and is not used afterwards.
            unsafe { function(instance) }
        })
    }

    pub(super) fn compute_profiles(
        &self,
        instance: nvmlGpuInstance_t,
        subject: &str,
    ) -> Result<Vec<ComputeInstanceProfile>, NvmlError> {
        let call = "nvmlGpuInstanceGetComputeInstanceProfileInfo";
        let symbol = &self.symbols().nvmlGpuInstanceGetComputeInstanceProfileInfo;
        let mut profiles = Vec::new();
        for query in 0..MOST_COMPUTE_PROFILES {
            let mut info = nvmlComputeInstanceProfileInfo_t {
                id: 0,
                sliceCount: 0,
                instanceCount: 0,
                multiprocessorCount: 0,
                sharedCopyEngineCount: 0,
                sharedDecoderCount: 0,
                sharedEncoderCount: 0,
                sharedJpegCount: 0,
                sharedOfaCount: 0,
            };
            let asked = self.call(call, subject, symbol, |function| {
                // SAFETY: the instance came from this library; `info` outlives the call.
                unsafe { function(instance, query, ENGINES_SHARED, &raw mut info) }
            });
            match asked {
                Ok(()) => profiles.push(ComputeInstanceProfile {
                    id: ComputeProfileId(info.id),
                    slices: info.sliceCount,
                    multiprocessors: info.multiprocessorCount,
                    most: info.instanceCount,
                    placements: self.compute_placements(instance, subject, info.id)?,
                }),
                Err(error) if error.code() == Some(Code::NOT_SUPPORTED) => {}
                Err(error) if error.code() == Some(Code::INVALID_ARGUMENT) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(profiles)
    }

    pub(super) fn compute_instances(
        &self,
        instance: nvmlGpuInstance_t,
        subject: &str,
        profile: &ComputeInstanceProfile,
    ) -> Result<Vec<nvmlComputeInstance_t>, NvmlError> {
        let room = (profile.most as usize).max(16);
        let mut found: Vec<nvmlComputeInstance_t> = vec![null_mut(); room];
        let mut count = c_uint::try_from(room).unwrap_or(c_uint::MAX);
        let symbol = &self.symbols().nvmlGpuInstanceGetComputeInstances;
        self.call(
            "nvmlGpuInstanceGetComputeInstances",
            subject,
            symbol,
            |function| {
                // SAFETY: the instance came from this library; the buffer has more room than compute
                // instances of one profile fit into a GPU instance (at most 8).
                unsafe { function(instance, profile.id.0, found.as_mut_ptr(), &raw mut count) }
            },
        )?;
        found.truncate(count as usize);
        Ok(found)
    }

    pub(super) fn read_compute_instance(
        &self,
        instance: nvmlComputeInstance_t,
        subject: &str,
    ) -> Result<ComputeInstanceReading, NvmlError> {
        let mut info = nvmlComputeInstanceInfo_t {
            device: null_mut(),
            gpuInstance: null_mut(),
            id: 0,
            profileId: 0,
            placement: nvmlComputeInstancePlacement_t { start: 0, size: 0 },
        };
        let symbol = &self.symbols().nvmlComputeInstanceGetInfo_v2;
        self.call(
            "nvmlComputeInstanceGetInfo_v2",
            subject,
            symbol,
            |function| {
                // SAFETY: the instance came from this library; `info` outlives the call.
                unsafe { function(instance, &raw mut info) }
            },
        )?;
        // SAFETY: the call above wrote the MIG device's handle, and the library is never unloaded.
        let device = unsafe { Device::new(info.device, self.library) };
        let uuid = self.ask("nvmlDeviceGetUUID", subject, || device.uuid())?;
        let attributes = self.attributes(&device, &uuid)?;
        Ok(ComputeInstanceReading {
            id: ComputeInstanceId(info.id),
            profile: ComputeProfileId(info.profileId),
            uuid,
            placement: Placement::new(info.placement.start, info.placement.size),
            slices: attributes.computeInstanceSliceCount,
            multiprocessors: attributes.multiprocessorCount,
        })
    }

    fn attributes(
        &self,
        device: &Device<'_>,
        uuid: &str,
    ) -> Result<nvmlDeviceAttributes_t, NvmlError> {
        let mut attributes = nvmlDeviceAttributes_t {
            multiprocessorCount: 0,
            sharedCopyEngineCount: 0,
            sharedDecoderCount: 0,
            sharedEncoderCount: 0,
            sharedJpegCount: 0,
            sharedOfaCount: 0,
            gpuInstanceSliceCount: 0,
            computeInstanceSliceCount: 0,
            memorySizeMB: 0,
        };
        let symbol = &self.symbols().nvmlDeviceGetAttributes_v2;
        self.call("nvmlDeviceGetAttributes_v2", uuid, symbol, |function| {
            // SAFETY: the handle came from this library; `attributes` outlives the call.
            unsafe { function(handle(device), &raw mut attributes) }
        })?;
        Ok(attributes)
    }
}
