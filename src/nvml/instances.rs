//! GPU instances, compute instances, and MIG devices as CUDA sees them.

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t,
    nvmlGpuInstance_t, nvmlGpuInstancePlacement_t,
};

use super::session::{GpuHandle, Handle, call, get, list, query_by_number, symbol};
use super::{Code, NvmlError};
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
const MAX_COMPUTE_PROFILES: u32 = 32;

/// More than there are compute slices in any GPU instance.
const MAX_COMPUTE_PLACEMENTS: usize = 32;

/// `NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED`, the only one there is.
const ENGINES_SHARED: u32 = 0;

impl GpuHandle {
    /// Returns the GPU instances of a GPU, by placement; none while MIG is off.
    ///
    /// # Errors
    /// `NO_PERMISSION` if the driver shows instances only to root.
    pub fn gpu_instances(
        &self,
        profiles: &[GpuInstanceProfile],
    ) -> Result<Vec<GpuInstanceReading>, NvmlError> {
        let mut instances = Vec::new();
        for profile in profiles {
            // `nvml.h` requires room for the profile's instanceCount, which is wrong on A30. There can never be more than
            // one per placement.
            let room = profile.placements.len().max(profile.most as usize).max(16);
            let found = match list!(self.nvmlDeviceGetGpuInstances(profile.id.0), room) {
                // MIG is off.
                Err(error) if error.code() == Some(Code::NOT_SUPPORTED) => Vec::new(),
                found => found?,
            };
            for instance in found {
                instances.push(self.with_raw(instance).query_with_compute()?);
            }
        }
        instances.sort_by_key(|instance| instance.placement);
        Ok(instances)
    }

    /// Returns the GPU instances that hold MIG devices, by placement, with these devices. Omits supported profiles, and
    /// GPU instances without a compute instance. This takes 9 calls per MIG device; [`gpu_instances`](Self::gpu_instances) takes
    /// about 80.
    ///
    /// # Errors
    /// `NO_PERMISSION` if the driver shows instances only to root.
    pub fn mig_devices(&self) -> Result<Vec<GpuInstanceReading>, NvmlError> {
        let most = self.call_wrapper("nvmlDeviceGetMaxMigDeviceCount", Device::mig_device_count)?;
        let mut instances = Vec::new();
        for index in 0..most {
            match self.read_mig_device(index, &mut instances) {
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
        index: u32,
        instances: &mut Vec<GpuInstanceReading>,
    ) -> Result<(), NvmlError> {
        let (device, (id, compute)) = self.mig_device_at(index)?;
        let instance = self.gpu_instance(id)?;
        let known = instances.iter().position(|known| known.id == id);
        let known = if let Some(known) = known {
            known
        } else {
            instances.push(instance.query_info()?);
            instances.len() - 1
        };
        let reading = instance.compute_instance(compute)?.query_info_of(&device)?;
        instances[known].compute.push(reading);
        Ok(())
    }

    fn gpu_instance(&self, id: GpuInstanceId) -> Result<GpuInstanceHandle, NvmlError> {
        let gpu = self.for_part(&format!("GPU instance {id}"));
        Ok(gpu.with_raw(get!(gpu.nvmlDeviceGetGpuInstanceById(id.0))?))
    }

    /// Creates a GPU instance at a placement.
    ///
    /// # Errors
    /// `INSUFFICIENT_RESOURCES` if the placement is in use.
    pub fn create_gpu_instance(
        &self,
        profile: ProfileId,
        at: Placement,
    ) -> Result<GpuInstanceId, NvmlError> {
        let placement = nvmlGpuInstancePlacement_t {
            start: at.start,
            size: at.size,
        };
        let place = &raw const placement;
        let created = get!(self.nvmlDeviceCreateGpuInstanceWithPlacement(profile.0, place))?;
        let instance = self.with_raw(created);
        match instance.query_info() {
            Ok(reading) => Ok(reading.id),
            // An instance without a number cannot be used, so it must not stay.
            Err(error) => Err(error.with_cleanup(instance.destroy())),
        }
    }

    /// Destroys a GPU instance without compute instances. Succeeds if it is already gone.
    ///
    /// # Errors
    /// `IN_USE` while it has a compute instance or a process uses it.
    pub fn destroy_gpu_instance(&self, id: GpuInstanceId) -> Result<(), NvmlError> {
        self.gpu_instance(id)
            .map_or_else(NvmlError::ok_if_gone, |instance| instance.destroy())
    }

    /// Returns the compute instance profiles that a GPU instance supports.
    pub fn compute_profiles_of(
        &self,
        id: GpuInstanceId,
    ) -> Result<Vec<ComputeInstanceProfile>, NvmlError> {
        self.gpu_instance(id)?.compute_profiles()
    }

    /// Creates a compute instance at a placement, or where the driver chooses.
    ///
    /// # Errors
    /// `INSUFFICIENT_RESOURCES` if the placement is in use.
    pub fn create_compute_instance(
        &self,
        id: GpuInstanceId,
        profile: ComputeProfileId,
        at: Option<Placement>,
    ) -> Result<ComputeInstanceReading, NvmlError> {
        let parent = self.gpu_instance(id)?;
        let created = if let Some(at) = at {
            let placement = nvmlComputeInstancePlacement_t {
                start: at.start,
                size: at.size,
            };
            let place = &raw const placement;
            get!(parent.nvmlGpuInstanceCreateComputeInstanceWithPlacement(profile.0, place))?
        } else {
            get!(parent.nvmlGpuInstanceCreateComputeInstance(profile.0))?
        };
        let instance = parent.with_raw(created);
        // An instance that cannot be read cannot be used, so it must not stay.
        instance
            .query_info()
            .map_err(|error| error.with_cleanup(instance.destroy()))
    }

    /// Destroys a compute instance. Succeeds if it is already gone.
    ///
    /// # Errors
    /// `IN_USE` while a process uses it.
    pub fn destroy_compute_instance(
        &self,
        parent: GpuInstanceId,
        id: ComputeInstanceId,
    ) -> Result<(), NvmlError> {
        self.gpu_instance(parent)
            .and_then(|parent| parent.compute_instance(id))
            .map_or_else(NvmlError::ok_if_gone, |instance| instance.destroy())
    }
}

type GpuInstanceHandle = Handle<nvmlGpuInstance_t>;

impl GpuInstanceHandle {
    /// Reads the GPU instance without its compute instances.
    fn query_info(&self) -> Result<GpuInstanceReading, NvmlError> {
        let info = get!(self.nvmlGpuInstanceGetInfo())?;
        Ok(GpuInstanceReading {
            id: GpuInstanceId(info.id),
            profile: ProfileId(info.profileId),
            placement: Placement::new(info.placement.start, info.placement.size),
            compute: Vec::new(),
            offered: Vec::new(),
        })
    }

    /// Reads the GPU instance, its compute instances, and what it offers.
    fn query_with_compute(&self) -> Result<GpuInstanceReading, NvmlError> {
        let mut reading = self.query_info()?;
        let instance = self.for_part(&format!("GPU instance {}", reading.id));
        reading.offered = instance.compute_profiles()?;
        for profile in &reading.offered {
            let room = (profile.most as usize).max(16);
            for found in list!(
                instance.nvmlGpuInstanceGetComputeInstances(profile.id.0),
                room
            )? {
                reading.compute.push(instance.with_raw(found).query_info()?);
            }
        }
        reading.compute.sort_by_key(|compute| compute.placement);
        Ok(reading)
    }

    /// Returns the compute instance profiles that the GPU instance supports.
    fn compute_profiles(&self) -> Result<Vec<ComputeInstanceProfile>, NvmlError> {
        query_by_number(MAX_COMPUTE_PROFILES, |query| {
            let info =
                get!(self.nvmlGpuInstanceGetComputeInstanceProfileInfo(query, ENGINES_SHARED))?;
            Ok(ComputeInstanceProfile {
                id: ComputeProfileId(info.id),
                slices: info.sliceCount,
                multiprocessors: info.multiprocessorCount,
                most: info.instanceCount,
                placements: self.compute_placements(info.id)?,
            })
        })
        .collect()
    }

    /// Returns the possible placements of a profile, or none if the driver cannot list them.
    fn compute_placements(&self, profile: u32) -> Result<Vec<Placement>, NvmlError> {
        let room = MAX_COMPUTE_PLACEMENTS;
        match list!(
            self.nvmlGpuInstanceGetComputeInstancePossiblePlacements(profile),
            room
        ) {
            Ok(found) => Ok(found
                .into_iter()
                .map(|place| Placement::new(place.start, place.size))
                .collect()),
            Err(NvmlError::Refused { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn compute_instance(&self, id: ComputeInstanceId) -> Result<ComputeHandle, NvmlError> {
        let instance = self.for_part(&format!("compute instance {id}"));
        Ok(instance.with_raw(get!(instance.nvmlGpuInstanceGetComputeInstanceById(id.0))?))
    }

    fn destroy(&self) -> Result<(), NvmlError> {
        call!(self.nvmlGpuInstanceDestroy())
    }
}

type ComputeHandle = Handle<nvmlComputeInstance_t>;

impl GpuHandle {
    /// Reads the compute instance of this MIG device.
    fn query_compute_instance(
        &self,
        info: &nvmlComputeInstanceInfo_t,
    ) -> Result<ComputeInstanceReading, NvmlError> {
        let attributes = self.call_wrapper("nvmlDeviceGetAttributes_v2", Device::attributes)?;
        let uuid = self.call_wrapper("nvmlDeviceGetUUID", Device::uuid)?;
        Ok(ComputeInstanceReading {
            id: ComputeInstanceId(info.id),
            profile: ComputeProfileId(info.profileId),
            uuid,
            placement: Placement::new(info.placement.start, info.placement.size),
            slices: attributes.compute_instance_slice_count,
            multiprocessors: attributes.multiprocessor_count,
        })
    }

    /// Returns the MIG device of a compute instance of this GPU.
    ///
    /// # Errors
    /// `NOT_FOUND` if there is none.
    fn find_mig_device(
        &self,
        instance: GpuInstanceId,
        compute: ComputeInstanceId,
    ) -> Result<Self, NvmlError> {
        let most = self.call_wrapper("nvmlDeviceGetMaxMigDeviceCount", Device::mig_device_count)?;
        for index in 0..most {
            match self.mig_device_at(index) {
                Ok((device, ids)) if ids == (instance, compute) => return Ok(device),
                Ok(_) => {}
                // Indices may have holes, and another device may disappear meanwhile.
                Err(error) if error.may_be_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Err(NvmlError::Refused {
            call: "nvmlDeviceGetMigDeviceHandleByIndex",
            subject: self.subject.clone(),
            code: Code::NOT_FOUND,
        })
    }

    /// Returns a MIG device of this GPU with the ids of its GPU instance and compute instance.
    fn mig_device_at(
        &self,
        index: u32,
    ) -> Result<(Self, (GpuInstanceId, ComputeInstanceId)), NvmlError> {
        let gpu = self.for_part(&format!("MIG device {index}"));
        let device = gpu.with_raw(get!(gpu.nvmlDeviceGetMigDeviceHandleByIndex(index))?);
        let instance = GpuInstanceId(get!(device.nvmlDeviceGetGpuInstanceId())?);
        let compute = ComputeInstanceId(get!(device.nvmlDeviceGetComputeInstanceId())?);
        Ok((device, (instance, compute)))
    }
}

impl ComputeHandle {
    fn query_info(&self) -> Result<ComputeInstanceReading, NvmlError> {
        let info = get!(self.nvmlComputeInstanceGetInfo_v2())?;
        let named: GpuHandle = self.with_raw(info.device);
        match named.query_compute_instance(&info) {
            // `nvml.h` describes the handle as the parent device, and a GPU has no attributes. So it was on an H200 with driver
            // 580; other programs take it for the MIG device.
            Err(error)
                if error.code() == Some(Code::NOT_SUPPORTED)
                    && get!(named.nvmlDeviceIsMigDeviceHandle())? == 0 =>
            {
                let parent: GpuInstanceHandle = self.with_raw(info.gpuInstance);
                let compute = ComputeInstanceId(info.id);
                let device = named.find_mig_device(parent.query_info()?.id, compute)?;
                let device: GpuHandle = self.with_raw(device.raw);
                device.query_compute_instance(&info)
            }
            reading => reading,
        }
    }

    /// Reads the compute instance of a MIG device.
    fn query_info_of(&self, device: &GpuHandle) -> Result<ComputeInstanceReading, NvmlError> {
        let info = get!(self.nvmlComputeInstanceGetInfo_v2())?;
        let device: GpuHandle = self.with_raw(device.raw);
        device.query_compute_instance(&info)
    }

    fn destroy(&self) -> Result<(), NvmlError> {
        call!(self.nvmlComputeInstanceDestroy())
    }
}
