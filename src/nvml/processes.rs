use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use super::{Memory, NvmlError, Session};

/// Who computes on a device, and its memory.
#[derive(Clone, Debug, Default)]
pub struct Processes {
    /// Every process with a CUDA context: MPS servers, their clients, and programs outside MPS.
    pub compute: Vec<Usage>,
    /// The MPS clients among them.
    pub clients: Vec<Usage>,
    /// The device's memory; `None` where the driver does not tell the caller.
    pub memory: Option<Memory>,
}

/// One process and the memory it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Its process id.
    pub pid: u32,
    /// Bytes; `None` where the driver does not tell the caller.
    pub memory: Option<u64>,
}

impl Session {
    /// Reads who computes on the GPU or MIG device with that UUID.
    ///
    /// Both lists come from the running system one after the other: they need not agree.
    ///
    /// # Errors
    /// [`NvmlError`]
    pub fn read_processes(&self, uuid: &str) -> Result<Processes, NvmlError> {
        let device = self.device(uuid)?;
        let clients = self.ask("nvmlDeviceGetMPSComputeRunningProcesses_v3", uuid, || {
            device.mps_running_compute_processes()
        })?;
        let compute = self.ask("nvmlDeviceGetComputeRunningProcesses_v3", uuid, || {
            device.running_compute_processes()
        })?;
        Ok(Processes {
            compute: compute.iter().map(usage).collect(),
            clients: clients.iter().map(usage).collect(),
            memory: self.memory(&device, uuid).ok(),
        })
    }
}

fn usage(info: &ProcessInfo) -> Usage {
    Usage {
        pid: info.pid,
        memory: match info.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        },
    }
}
