//! MIG devices as CUDA sees them: the fast way to read the instances that can be served.

use std::ffi::c_uint;
use std::ptr::null_mut;

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{nvmlComputeInstance_t, nvmlDevice_t};

use super::ffi::handle;
use super::{Code, GpuInstanceReading, NvmlError, Session};
use crate::geometry::GpuInstanceId;

impl Session {
    /// Returns the GPU instances that hold MIG devices, by placement, with these devices. Omits supported profiles, and
    /// GPU instances without a compute instance. This takes 9 calls per MIG device;
    /// [`read_instances`](Self::read_instances) takes about 80.
    ///
    /// # Errors
    /// `NO_PERMISSION` if the driver shows instances only to root.
    pub fn read_mig_devices(&self, gpu: &str) -> Result<Vec<GpuInstanceReading>, NvmlError> {
        let device = self.device(gpu)?;
        let mut most: c_uint = 0;
        let symbol = &self.symbols().nvmlDeviceGetMaxMigDeviceCount;
        self.call("nvmlDeviceGetMaxMigDeviceCount", gpu, symbol, |function| {
            // SAFETY: the handle came from this library; `most` outlives the call.
            unsafe { function(handle(&device), &raw mut most) }
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
        let mut mig: nvmlDevice_t = null_mut();
        let symbol = &self.symbols().nvmlDeviceGetMigDeviceHandleByIndex;
        let call = "nvmlDeviceGetMigDeviceHandleByIndex";
        self.call(call, &subject, symbol, |function| {
            // SAFETY: the handle came from this library; `mig` outlives the call.
            unsafe { function(handle(device), index, &raw mut mig) }
        })?;
        let (mut instance, mut compute): (c_uint, c_uint) = (0, 0);
        let symbol = &self.symbols().nvmlDeviceGetGpuInstanceId;
        self.call("nvmlDeviceGetGpuInstanceId", &subject, symbol, |function| {
            // SAFETY: the call above wrote `mig`; `instance` outlives the call.
            unsafe { function(mig, &raw mut instance) }
        })?;
        let symbol = &self.symbols().nvmlDeviceGetComputeInstanceId;
        let call = "nvmlDeviceGetComputeInstanceId";
        self.call(call, &subject, symbol, |function| {
            // SAFETY: as above.
            unsafe { function(mig, &raw mut compute) }
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
        let mut found: nvmlComputeInstance_t = null_mut();
        let symbol = &self.symbols().nvmlGpuInstanceGetComputeInstanceById;
        let call = "nvmlGpuInstanceGetComputeInstanceById";
        self.call(call, &subject, symbol, |function| {
            // SAFETY: the instance came from this library; `found` outlives the call.
            unsafe { function(gpu_instance, compute, &raw mut found) }
        })?;
        let reading = self.read_compute_instance(found, &subject)?;
        instances[known].compute.push(reading);
        Ok(())
    }
}
