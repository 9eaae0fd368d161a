use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlMemory_t};

use super::ffi::handle;
use super::{MigMode, NvmlError, Session};

/// What one GPU says of itself.
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
    /// The number in `/dev/nvidia<minor>`; it may be another one after the MIG mode has changed.
    /// `None` where the driver does not tell, or was not asked.
    pub minor: Option<u32>,
    /// Whole memory and what is in use; `None` where the driver does not tell, or was not asked.
    pub memory: Option<Memory>,
    /// `None` for a GPU that has no MIG.
    pub mig: Option<MigMode>,
}

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All there is.
    pub total: u64,
    /// What is in use, the driver's own share left out.
    pub used: u64,
}

impl Session {
    /// How many GPUs the driver shows.
    ///
    /// # Errors
    /// [`NvmlError`]
    pub fn gpu_count(&self) -> Result<u32, NvmlError> {
        self.ask("nvmlDeviceGetCount_v2", "the driver", || {
            self.library.device_count()
        })
    }

    /// The driver's version, such as `580.159.04`.
    ///
    /// # Errors
    /// [`NvmlError`]
    pub fn driver_version(&self) -> Result<String, NvmlError> {
        self.ask("nvmlSystemGetDriverVersion", "the driver", || {
            self.library.sys_driver_version()
        })
    }

    /// Reads the GPU with that index.
    ///
    /// # Errors
    /// [`NvmlError`]
    pub fn read_gpu(&self, index: u32) -> Result<GpuReading, NvmlError> {
        let (device, mut reading) = self.identify(index)?;
        let subject = format!("GPU {index}");
        let call = "nvmlDeviceGetMinorNumber";
        reading.minor = self.ask(call, &subject, || device.minor_number()).ok();
        reading.memory = self.memory(&device, &subject).ok();
        Ok(reading)
    }

    /// Reads which GPU has that index, and whether it is partitioned: without its minor number and its
    /// memory.
    ///
    /// # Errors
    /// [`NvmlError`]
    pub fn read_gpu_briefly(&self, index: u32) -> Result<GpuReading, NvmlError> {
        self.identify(index).map(|(_, reading)| reading)
    }

    /// Asks for the GPU with that index and nothing else.
    pub(super) fn find(&self, index: u32) -> Result<(), NvmlError> {
        let subject = format!("GPU {index}");
        let call = "nvmlDeviceGetHandleByIndex_v2";
        self.ask(call, &subject, || self.library.device_by_index(index))
            .map(drop)
    }

    fn identify(&self, index: u32) -> Result<(Device<'static>, GpuReading), NvmlError> {
        let subject = format!("GPU {index}");
        let device = self.ask("nvmlDeviceGetHandleByIndex_v2", &subject, || {
            self.library.device_by_index(index)
        })?;
        let uuid = self.ask("nvmlDeviceGetUUID", &subject, || device.uuid())?;
        let product = self.ask("nvmlDeviceGetName", &subject, || device.name())?;
        let pci = self.ask("nvmlDeviceGetPciInfo_v3", &subject, || device.pci_info())?;
        let mig = self.mig_mode(&device, &subject)?;
        let reading = GpuReading {
            index,
            uuid,
            product,
            pci: pci
                .bus_id
                .strip_prefix("0000")
                .unwrap_or(&pci.bus_id)
                .to_lowercase(),
            minor: None,
            memory: None,
            mig,
        };
        Ok((device, reading))
    }

    /// How much of the last sampling period a GPU was computing, in percent; the driver does not
    /// tell for MIG devices, nor for a GPU in MIG mode.
    pub fn utilization(&self, gpu: &str) -> Option<u32> {
        let device = self.device(gpu).ok()?;
        let call = "nvmlDeviceGetUtilizationRates";
        let rates = self.ask(call, gpu, || device.utilization_rates()).ok()?;
        Some(rates.gpu)
    }

    /// The number in `/dev/nvidia<minor>`: it may change with the MIG mode.
    ///
    /// # Errors
    /// [`NvmlError`]
    pub fn minor_number(&self, uuid: &str) -> Result<u32, NvmlError> {
        let device = self.device(uuid)?;
        self.ask("nvmlDeviceGetMinorNumber", uuid, || device.minor_number())
    }

    /// The GPU or MIG device with that UUID.
    pub(super) fn device(&self, uuid: &str) -> Result<Device<'static>, NvmlError> {
        self.ask("nvmlDeviceGetHandleByUUID", uuid, || {
            self.library.device_by_uuid(uuid)
        })
    }

    /// Memory of a GPU or MIG device. Drivers before R510 know only the first version of the call,
    /// which counts the driver's own share as used.
    pub(super) fn memory(&self, device: &Device<'_>, subject: &str) -> Result<Memory, NvmlError> {
        let call = "nvmlDeviceGetMemoryInfo_v2";
        match self.ask(call, subject, || device.memory_info()) {
            Ok(info) => Ok(Memory {
                total: info.total,
                used: info.used,
            }),
            Err(NvmlError::TooOld { .. }) => self.memory_v1(handle(device), subject),
            Err(error) => Err(error),
        }
    }

    fn memory_v1(&self, device: nvmlDevice_t, subject: &str) -> Result<Memory, NvmlError> {
        let mut info = nvmlMemory_t {
            total: 0,
            free: 0,
            used: 0,
        };
        let symbol = &self.symbols().nvmlDeviceGetMemoryInfo;
        self.call("nvmlDeviceGetMemoryInfo", subject, symbol, |function| {
            // SAFETY: the handle came from this library and `info` outlives the call.
            unsafe { function(device, &raw mut info) }
        })?;
        Ok(Memory {
            total: info.total,
            used: info.used,
        })
    }
}
