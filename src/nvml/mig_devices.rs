//! MIG devices as CUDA sees them: the fast way to read the instances that can be served.

use nvml_wrapper::Device;

use super::ffi::{handle, symbol};
use super::{Code, GpuInstanceReading, NvmlError, Session};
use crate::geometry::{ComputeInstanceId, GpuInstanceId};

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
