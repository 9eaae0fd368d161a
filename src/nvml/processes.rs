use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlProcessInfo_t};

use super::ffi::{Symbol, handle, symbol};
use super::{Code, Memory, NvmlError, Session};

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
