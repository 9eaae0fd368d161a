//! One GPU: its identity, MIG mode, compute mode and processes.

use std::ffi::c_uint;

use nvml_wrapper::Device;
use nvml_wrapper::enums::device::{DeviceArchitecture, SampleValue};
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper_sys::bindings::{
    nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, nvmlDevice_t, nvmlProcessInfo_t,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::library::{Symbol, handle, symbol};
use super::{Code, NvmlError, Session};

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

    /// Opens a GPU, which makes later calls fast.
    pub fn open(&self, index: u32) -> Result<(), NvmlError> {
        self.device_at(index).map(drop)
    }

    /// Opens a GPU, and returns its handle.
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

/// A MIG mode.
// The two modes differ only while a reset or reboot is due (`nvml.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MigMode {
    /// True if MIG is on.
    pub current: bool,
    /// True if MIG is on after the next reset.
    pub pending: bool,
}

/// `NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED`
const FIELD_RESETLESS: u32 = 184;

impl Session {
    /// Sets the MIG mode. Returns `activationStatus`, the reason if the mode is pending and not active. The mode must be
    /// read back in any case.
    ///
    /// The call may reset the GPU, which may change handles and the minor number.
    pub fn set_mig_mode(&self, gpu: &str, on: bool) -> Result<Code, NvmlError> {
        let device = self.device(gpu)?;
        let symbol = symbol!(self, nvmlDeviceSetMigMode);
        let activation = self.get(symbol, gpu, |function, activation| {
            // SAFETY: the handle came from this library.
            unsafe { function(handle(&device), on.into(), activation) }
        })?;
        Ok(Code(activation))
    }

    /// Reads the MIG mode of a GPU: off if the GPU has no MIG.
    pub fn read_mig_mode(&self, gpu: &str) -> Result<MigMode, NvmlError> {
        let device = self.device(gpu)?;
        Ok(self.mig_mode(&device, gpu)?.unwrap_or(MigMode {
            current: false,
            pending: false,
        }))
    }

    /// True if the MIG mode changes without a reset. On drivers without this query the GPU's architecture decides: Hopper
    /// and later need no reset (MIG user guide).
    pub fn changes_without_reset(&self, gpu: &str) -> Result<bool, NvmlError> {
        let device = self.device(gpu)?;
        let field = self.ask("nvmlDeviceGetFieldValues", gpu, || {
            device.field_values_for(&[FieldId(FIELD_RESETLESS)])
        });
        let value = field.ok().and_then(|values| values.into_iter().next());
        if let Some(Ok(sample)) = value
            && let Ok(value) = sample.value
        {
            return Ok(!matches!(
                value,
                SampleValue::U32(0) | SampleValue::U64(0) | SampleValue::I64(0)
            ));
        }
        let call = "nvmlDeviceGetArchitecture";
        let architecture = self.ask(call, gpu, || device.architecture())?;
        Ok(matches!(
            architecture,
            DeviceArchitecture::Hopper
                | DeviceArchitecture::Blackwell
                | DeviceArchitecture::Unknown
        ))
    }

    /// Returns `None` for a GPU without MIG.
    pub(super) fn mig_mode(
        &self,
        device: &Device<'_>,
        subject: &str,
    ) -> Result<Option<MigMode>, NvmlError> {
        match self.ask("nvmlDeviceGetMigMode", subject, || device.mig_mode()) {
            Ok(mode) => Ok(Some(MigMode {
                current: mode.current == 1,
                pending: mode.pending == 1,
            })),
            Err(NvmlError::TooOld { .. }) => Ok(None),
            Err(error) if error.code() == Some(Code::NOT_SUPPORTED) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// `NVML_COMPUTEMODE_EXCLUSIVE_PROCESS`: only one process may have a context on the GPU.
pub const EXCLUSIVE_PROCESS: u32 = nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS;

/// Names a compute mode as `nvidia-smi` does, in kebab-case.
pub fn compute_mode_in_words(mode: u32) -> &'static str {
    match mode {
        0 => "default",
        1 => "exclusive-thread",
        2 => "prohibited",
        EXCLUSIVE_PROCESS => "exclusive-process",
        _ => "one that is unknown",
    }
}

impl Session {
    /// Reads NVML's number of a GPU's compute mode. Not supported in MIG mode.
    pub fn compute_mode(&self, gpu: &str) -> Result<u32, NvmlError> {
        let device = self.device(gpu)?;
        let symbol = symbol!(self, nvmlDeviceGetComputeMode);
        self.get(symbol, gpu, |function, mode| {
            // SAFETY: the handle came from this library.
            unsafe { function(handle(&device), mode) }
        })
    }

    /// Sets a GPU's compute mode and reads it back. Needs root.
    pub fn set_compute_mode(&self, gpu: &str, mode: u32) -> Result<u32, NvmlError> {
        let device = self.device(gpu)?;
        let symbol = symbol!(self, nvmlDeviceSetComputeMode);
        self.call(symbol, gpu, |function| {
            // SAFETY: the handle came from this library.
            unsafe { function(handle(&device), mode) }
        })?;
        self.compute_mode(gpu)
    }
}

/// The processes that compute on a device, and its memory.
#[derive(Clone, Debug, Default)]
pub struct Processes {
    /// All processes with a CUDA context: MPS servers, their clients, and programs outside MPS.
    pub compute: Vec<Usage>,
    /// The MPS clients among them.
    pub clients: Vec<Usage>,
    /// `None` if the driver hides it from the caller.
    pub memory: Option<Memory>,
}

/// A process and the memory it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub pid: u32,
    /// In bytes; `None` if the driver hides it from the caller.
    pub memory: Option<u64>,
}

impl Session {
    /// Reads the processes of the GPU or MIG device with this UUID. The two lists are read one after the other and may
    /// disagree.
    pub fn read_processes(&self, uuid: &str) -> Result<Processes, NvmlError> {
        let device = self.device(uuid)?;
        let clients = symbol!(self, nvmlDeviceGetMPSComputeRunningProcesses_v3);
        let clients = self.usages(clients, uuid, handle(&device))?;
        let compute = symbol!(self, nvmlDeviceGetComputeRunningProcesses_v3);
        Ok(Processes {
            compute: self.usages(compute, uuid, handle(&device))?,
            clients,
            memory: self.memory(&device, uuid).ok(),
        })
    }

    /// Reads a list, in one call unless there are more processes than expected.
    fn usages(
        &self,
        symbol: Symbol<List>,
        uuid: &str,
        device: nvmlDevice_t,
    ) -> Result<Vec<Usage>, NvmlError> {
        let mut room = EXPECTED;
        loop {
            let listed = self.list(symbol, uuid, room, |function, count, found| {
                // SAFETY: the handle came from this library, the pointers from this session.
                unsafe { function(device, count, found) }
            });
            match listed {
                // More processes may start before the next call.
                Err(error) if error.code() == Some(Code::INSUFFICIENT_SIZE) && room < LIMIT => {
                    room *= 2;
                }
                listed => return Ok(listed?.iter().map(usage).collect()),
            }
        }
    }
}

/// A call that lists processes.
type List = unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_t) -> u32;

/// Twice the processes that an MPS server admits.
const EXPECTED: usize = 128;

/// More contexts than any GPU can have: an answer above this is wrong.
const LIMIT: usize = 1 << 16;

/// `NVML_VALUE_NOT_AVAILABLE`, as an unsigned number.
const NOT_AVAILABLE: u64 = u64::MAX;

fn usage(info: &nvmlProcessInfo_t) -> Usage {
    Usage {
        pid: info.pid,
        memory: Some(info.usedGpuMemory).filter(|&bytes| bytes != NOT_AVAILABLE),
    }
}
