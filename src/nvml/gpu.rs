use nvml_wrapper::Device;

use super::ffi::{handle, symbol};
use super::{MigMode, NvmlError, Session};

/// A GPU as NVML describes it.
#[derive(Clone, Debug)]
pub struct GpuReading {
    /// NVML's index, in PCI order.
    pub index: u32,
    /// `GPU-…`
    pub uuid: String,
    /// `NVIDIA A100-SXM4-80GB`
    pub product: String,
    /// `0000:17:00.0`, as `/sys/bus/pci/devices` spells it.
    pub pci: String,
    /// The number in `/dev/nvidia<minor>`, which may change with the MIG mode. `None` if it is unknown.
    pub minor: Option<u32>,
    /// `None` if it is unknown.
    pub memory: Option<Memory>,
    /// `None` for a GPU without MIG.
    pub mig: Option<MigMode>,
}

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub total: u64,
    /// Memory in use, without the driver's own share.
    pub used: u64,
}

impl Session {
    /// Returns the number of GPUs.
    pub fn gpu_count(&self) -> Result<u32, NvmlError> {
        self.ask("nvmlDeviceGetCount_v2", "the driver", || {
            self.library.device_count()
        })
    }

    /// Returns the driver's version, such as `580.159.04`.
    pub fn driver_version(&self) -> Result<String, NvmlError> {
        self.ask("nvmlSystemGetDriverVersion", "the driver", || {
            self.library.sys_driver_version()
        })
    }

    pub fn read_gpu(&self, index: u32) -> Result<GpuReading, NvmlError> {
        let (device, mut reading) = self.identify(index)?;
        let subject = format!("GPU {index}");
        let call = "nvmlDeviceGetMinorNumber";
        reading.minor = self.ask(call, &subject, || device.minor_number()).ok();
        reading.memory = self.memory(&device, &subject).ok();
        Ok(reading)
    }

    /// Reads a GPU without its minor number and its memory.
    pub fn read_gpu_briefly(&self, index: u32) -> Result<GpuReading, NvmlError> {
        self.identify(index).map(|(_, reading)| reading)
    }

    /// Opens a GPU.
    pub(super) fn device_at(&self, index: u32) -> Result<Device<'static>, NvmlError> {
        let call = "nvmlDeviceGetHandleByIndex_v2";
        let subject = format!("GPU {index}");
        self.ask(call, &subject, || self.library.device_by_index(index))
    }

    fn identify(&self, index: u32) -> Result<(Device<'static>, GpuReading), NvmlError> {
        let subject = format!("GPU {index}");
        let device = self.device_at(index)?;
        let uuid = self.ask("nvmlDeviceGetUUID", &subject, || device.uuid())?;
        let product = self.ask("nvmlDeviceGetName", &subject, || device.name())?;
        let pci = self.ask("nvmlDeviceGetPciInfo_v3", &subject, || device.pci_info())?;
        let mig = self.mig_mode(&device, &subject)?;
        let bus_id = pci.bus_id.strip_prefix("0000").unwrap_or(&pci.bus_id);
        let reading = GpuReading {
            index,
            uuid,
            product,
            pci: bus_id.to_lowercase(),
            minor: None,
            memory: None,
            mig,
        };
        Ok((device, reading))
    }

    /// Returns the GPU utilization of the last sampling period in percent. The driver has none for MIG devices and for a
    /// GPU in MIG mode.
    pub fn utilization(&self, gpu: &str) -> Option<u32> {
        let device = self.device(gpu).ok()?;
        let call = "nvmlDeviceGetUtilizationRates";
        let rates = self.ask(call, gpu, || device.utilization_rates()).ok()?;
        Some(rates.gpu)
    }

    /// Returns the CUDA version of the driver, 1000 × major + 10 × minor.
    pub fn cuda_version(&self) -> Result<u32, NvmlError> {
        let version = self.ask("nvmlSystemGetCudaDriverVersion", "the driver", || {
            self.library.sys_cuda_driver_version()
        })?;
        Ok(version.unsigned_abs())
    }

    /// Returns the CUDA compute capability of a GPU, such as 8.0.
    pub fn compute_capability(&self, gpu: &str) -> Result<(u32, u32), NvmlError> {
        let device = self.device(gpu)?;
        let call = "nvmlDeviceGetCudaComputeCapability";
        let capability = self.ask(call, gpu, || device.cuda_compute_capability())?;
        Ok((
            capability.major.unsigned_abs(),
            capability.minor.unsigned_abs(),
        ))
    }

    /// True if the driver keeps a GPU initialised while nobody uses it.
    pub fn is_persistent(&self, gpu: &str) -> Result<bool, NvmlError> {
        let device = self.device(gpu)?;
        let symbol = symbol!(self, nvmlDeviceGetPersistenceMode);
        let mode = self.get(symbol, gpu, |function, mode| {
            // SAFETY: the handle came from this library.
            unsafe { function(handle(&device), mode) }
        })?;
        Ok(mode == 1)
    }

    /// Returns the number in `/dev/nvidia<minor>`, which may change with the MIG mode.
    pub fn minor_number(&self, uuid: &str) -> Result<u32, NvmlError> {
        let device = self.device(uuid)?;
        self.ask("nvmlDeviceGetMinorNumber", uuid, || device.minor_number())
    }

    /// Returns the GPU or MIG device with this UUID.
    pub(super) fn device(&self, uuid: &str) -> Result<Device<'static>, NvmlError> {
        self.ask("nvmlDeviceGetHandleByUUID", uuid, || {
            self.library.device_by_uuid(uuid)
        })
    }

    /// Returns the memory of a GPU or MIG device. Drivers before R510 have only the first version of the call, which
    /// counts the driver's own share as used.
    pub(super) fn memory(&self, device: &Device<'_>, subject: &str) -> Result<Memory, NvmlError> {
        let call = "nvmlDeviceGetMemoryInfo_v2";
        let (total, used) = match self.ask(call, subject, || device.memory_info()) {
            Ok(info) => (info.total, info.used),
            Err(NvmlError::TooOld { .. }) => {
                let symbol = symbol!(self, nvmlDeviceGetMemoryInfo);
                let info = self.get(symbol, subject, |function, info| {
                    // SAFETY: the handle came from this library.
                    unsafe { function(handle(device), info) }
                })?;
                (info.total, info.used)
            }
            Err(error) => return Err(error),
        };
        Ok(Memory { total, used })
    }
}
