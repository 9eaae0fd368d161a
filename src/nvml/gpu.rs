//! One GPU: its identity, MIG mode, compute mode and processes.

use std::ffi::c_uint;

use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, nvmlDevice_t, nvmlProcessInfo_t,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::session::{GpuHandle, Symbol, call, get, symbol};
use super::{Code, NvmlError, Session};
use crate::host::Pid;

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub total: u64,
    /// Memory in use, without the driver's own share.
    pub used: u64,
}

impl Session {
    /// Returns the number of GPUs.
    pub fn gpu_count(&self) -> Result<u32, NvmlError> {
        self.call_wrapper("nvmlDeviceGetCount_v2", "the driver", Nvml::device_count)
    }

    /// Returns the driver's version, such as `580.159.04`.
    pub fn driver_version(&self) -> Result<String, NvmlError> {
        let call = "nvmlSystemGetDriverVersion";
        self.call_wrapper(call, "the driver", Nvml::sys_driver_version)
    }

    /// Returns the CUDA version of the driver, 1000 × major + 10 × minor.
    pub fn cuda_version(&self) -> Result<u32, NvmlError> {
        let call = "nvmlSystemGetCudaDriverVersion";
        let version = self.call_wrapper(call, "the driver", Nvml::sys_cuda_driver_version)?;
        Ok(version.unsigned_abs())
    }

    pub fn read_gpu(&self, index: u32) -> Result<GpuReading, NvmlError> {
        let gpu = self.gpu_at(index)?;
        let reading = gpu.read_without_memory(index)?;
        Ok(GpuReading {
            memory: gpu.query_memory().ok(),
            ..reading
        })
    }

    /// Reads a GPU without its memory.
    pub fn read_gpu_briefly(&self, index: u32) -> Result<GpuReading, NvmlError> {
        self.gpu_at(index)?.read_without_memory(index)
    }
}

impl GpuHandle {
    fn read_without_memory(&self, index: u32) -> Result<GpuReading, NvmlError> {
        let uuid = self.call_wrapper("nvmlDeviceGetUUID", Device::uuid)?;
        let product = self.call_wrapper("nvmlDeviceGetName", Device::name)?;
        let pci = self.call_wrapper("nvmlDeviceGetPciInfo_v3", Device::pci_info)?;
        let bus_id = pci.bus_id.strip_prefix("0000").unwrap_or(&pci.bus_id);
        Ok(GpuReading {
            index,
            uuid,
            product,
            pci: bus_id.to_lowercase(),
            minor: self.minor_number().ok(),
            memory: None,
            mig: self.mig_mode_if_supported()?,
        })
    }

    /// Returns the GPU utilization of the last sampling period in percent. The driver has none for MIG devices and for a
    /// GPU in MIG mode.
    pub fn query_utilization(&self) -> Option<u32> {
        let call = "nvmlDeviceGetUtilizationRates";
        Some(self.call_wrapper(call, Device::utilization_rates).ok()?.gpu)
    }

    /// Returns the CUDA compute capability, such as 8.0.
    pub fn compute_capability(&self) -> Result<(u32, u32), NvmlError> {
        let call = "nvmlDeviceGetCudaComputeCapability";
        let capability = self.call_wrapper(call, Device::cuda_compute_capability)?;
        Ok((
            capability.major.unsigned_abs(),
            capability.minor.unsigned_abs(),
        ))
    }

    /// True if the driver keeps the GPU initialized while nobody uses it.
    pub fn is_persistent(&self) -> Result<bool, NvmlError> {
        self.call_wrapper(
            "nvmlDeviceGetPersistenceMode",
            Device::is_in_persistent_mode,
        )
    }

    /// Returns the number in `/dev/nvidia<minor>`, which may change with the MIG mode.
    pub fn minor_number(&self) -> Result<u32, NvmlError> {
        self.call_wrapper("nvmlDeviceGetMinorNumber", Device::minor_number)
    }

    /// Returns the memory of the GPU or MIG device.
    fn query_memory(&self) -> Result<Memory, NvmlError> {
        let info = self.call_wrapper("nvmlDeviceGetMemoryInfo_v2", Device::memory_info)?;
        Ok(Memory {
            total: info.total,
            used: info.used,
        })
    }

    /// Sets the MIG mode. Returns `activationStatus`, the reason if the mode is pending and not active. The mode must be
    /// read back in any case.
    ///
    /// The call may reset the GPU, which may change handles and the minor number.
    pub fn set_mig_mode(&self, on: bool) -> Result<Code, NvmlError> {
        let activation =
            self.call_wrapper("nvmlDeviceSetMigMode", |device| device.set_mig_mode(on))?;
        Ok(Code(activation))
    }

    /// Reads the MIG mode: off if the GPU has no MIG.
    pub fn mig_mode(&self) -> Result<MigMode, NvmlError> {
        Ok(self.mig_mode_if_supported()?.unwrap_or_default())
    }

    /// True if the MIG mode changes without a reset, as on Hopper and later GPUs (MIG user guide). False if the driver
    /// does not say so of this GPU.
    pub fn changes_without_reset(&self) -> Result<bool, NvmlError> {
        Ok(self.field_values([FIELD_RESETLESS])? == [Some(1)])
    }

    /// Returns the values of fields in one call; `None` for a field that the driver or the GPU does not have, and for a value
    /// that is no such number.
    pub(super) fn field_values<const N: usize>(
        &self,
        ids: [u32; N],
    ) -> Result<[Option<u32>; N], NvmlError> {
        let call = "nvmlDeviceGetFieldValues";
        let samples =
            self.call_wrapper(call, |device| device.field_values_for(&ids.map(FieldId)))?;
        let mut values = [None; N];
        for (value, sample) in values.iter_mut().zip(samples) {
            *value = match sample.and_then(|sample| sample.value) {
                Ok(SampleValue::U32(value)) => Some(value),
                Ok(SampleValue::U64(value)) => value.try_into().ok(),
                Ok(SampleValue::I64(value)) => value.try_into().ok(),
                Ok(SampleValue::F64(_)) | Err(_) => None,
            };
        }
        Ok(values)
    }

    /// Returns the MIG mode; `None` for a GPU without MIG.
    fn mig_mode_if_supported(&self) -> Result<Option<MigMode>, NvmlError> {
        match self.call_wrapper("nvmlDeviceGetMigMode", Device::mig_mode) {
            Ok(mode) => Ok(Some(MigMode {
                current: mode.current == 1,
                pending: mode.pending == 1,
            })),
            Err(error) if error.code() == Some(Code::NOT_SUPPORTED) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads NVML's number of the compute mode. Not supported in MIG mode.
    pub fn compute_mode(&self) -> Result<u32, NvmlError> {
        get!(self.nvmlDeviceGetComputeMode())
    }

    /// Sets the compute mode and reads it back. Needs root.
    pub fn set_compute_mode(&self, mode: u32) -> Result<u32, NvmlError> {
        call!(self.nvmlDeviceSetComputeMode(mode))?;
        self.compute_mode()
    }

    /// Reads the processes of the GPU or MIG device. The two lists are read one after the other and may disagree.
    pub fn query_processes(&self) -> Result<Processes, NvmlError> {
        let clients = symbol!(self.session, nvmlDeviceGetMPSComputeRunningProcesses_v3);
        let compute = symbol!(self.session, nvmlDeviceGetComputeRunningProcesses_v3);
        Ok(Processes {
            clients: self.list_usages(clients)?,
            compute: self.list_usages(compute)?,
            memory: self.query_memory().ok(),
            memory_of_gpus: Vec::new(),
        })
    }

    /// Reads a list, in one call unless there are more processes than expected.
    fn list_usages(&self, symbol: Symbol<ListProcesses>) -> Result<Vec<Usage>, NvmlError> {
        let mut room = EXPECTED_PROCESSES;
        loop {
            let listed = self.list(symbol, room, |function, count, found| {
                // SAFETY: the handle came from this library; the buffer has room for `count` entries.
                unsafe { function(self.raw, count, found) }
            });
            match listed {
                // More processes may start before the next call.
                Err(error)
                    if error.code() == Some(Code::INSUFFICIENT_SIZE) && room < MAX_PROCESSES =>
                {
                    room *= 2;
                }
                listed => return Ok(listed?.iter().map(usage_from_info).collect()),
            }
        }
    }
}

/// A MIG mode.
// The two modes differ only while a reset or reboot is due (`nvml.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MigMode {
    /// True if MIG is on.
    pub current: bool,
    /// True if MIG is on after the next reset.
    pub pending: bool,
}

/// `NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED`
const FIELD_RESETLESS: u32 = 184;

/// `NVML_COMPUTEMODE_DEFAULT`: every process may have a context on the GPU.
pub const DEFAULT_COMPUTE_MODE: u32 = 0;

/// `NVML_COMPUTEMODE_EXCLUSIVE_PROCESS`: only one process may have a context on the GPU.
pub const EXCLUSIVE_PROCESS: u32 = nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS;

/// Names a compute mode as `nvidia-smi` does, in kebab-case.
pub fn compute_mode_name(mode: u32) -> &'static str {
    match mode {
        DEFAULT_COMPUTE_MODE => "default",
        1 => "exclusive-thread",
        2 => "prohibited",
        EXCLUSIVE_PROCESS => "exclusive-process",
        _ => "one that is unknown",
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
    /// The memory of each GPU of a joint device, in their order; none of another device.
    pub memory_of_gpus: Vec<Option<Memory>>,
}

impl Processes {
    /// True if the process computes on the device.
    pub fn contains_pid(&self, pid: Pid) -> bool {
        self.compute.iter().any(|usage| usage.pid == pid)
    }

    /// Returns the processes of several GPUs together. Whoever uses several has the memory of all.
    pub fn of_several_gpus(gpus: impl Iterator<Item = (u32, Self)>) -> Self {
        let mut all = Self {
            memory: Some(Memory::default()),
            ..Self::default()
        };
        for (index, own) in gpus {
            add_usages(&mut all.compute, index, own.compute);
            add_usages(&mut all.clients, index, own.clients);
            all.memory_of_gpus.push(own.memory);
            all.memory = all.memory.zip(own.memory).map(|(all, own)| Memory {
                total: all.total + own.total,
                used: all.used + own.used,
            });
        }
        all
    }

    /// True if the process is an MPS client.
    pub fn contains_client(&self, pid: Pid) -> bool {
        self.clients.iter().any(|usage| usage.pid == pid)
    }
}

/// A process and the memory it uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    pub pid: Pid,
    /// In bytes; `None` if the driver hides it from the caller.
    pub memory: Option<u64>,
    /// Its memory on each GPU of a joint device that it uses; none on another device.
    pub gpus: Vec<GpuUsage>,
}

impl GpuUsage {
    /// Returns the same by the index of the GPU, of an answer of the driver that has the GPUs by their positions among these.
    pub fn of_device(&self, indices: &[u32]) -> Option<Self> {
        let index = *indices.get(self.index as usize)?;
        Some(Self { index, ..*self })
    }
}

/// The memory that a process uses on one GPU of a joint device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct GpuUsage {
    /// The index of the GPU.
    pub index: u32,
    /// Device memory in use; null if the driver does not report it.
    #[serde(rename = "memory_used_bytes")]
    pub memory: Option<u64>,
}

/// Adds the usages of one GPU of a joint device.
fn add_usages(all: &mut Vec<Usage>, gpu: u32, own: Vec<Usage>) {
    for usage in own {
        let on_gpu = GpuUsage {
            index: gpu,
            memory: usage.memory,
        };
        match all.iter_mut().find(|known| known.pid == usage.pid) {
            Some(known) => {
                known.memory = known
                    .memory
                    .zip(usage.memory)
                    .map(|(one, other)| one + other);
                known.gpus.push(on_gpu);
            }
            None => all.push(Usage {
                gpus: vec![on_gpu],
                ..usage
            }),
        }
    }
}

/// A call that lists processes.
type ListProcesses = unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_t) -> u32;

/// Twice the processes that an MPS server admits.
const EXPECTED_PROCESSES: usize = 128;

/// More contexts than any GPU can have: an answer above this is wrong.
const MAX_PROCESSES: usize = 1 << 16;

/// `NVML_VALUE_NOT_AVAILABLE`, as an unsigned number.
const NOT_AVAILABLE: u64 = u64::MAX;

fn usage_from_info(info: &nvmlProcessInfo_t) -> Usage {
    Usage {
        pid: Pid(info.pid),
        memory: Some(info.usedGpuMemory).filter(|&bytes| bytes != NOT_AVAILABLE),
        gpus: Vec::new(),
    }
}
