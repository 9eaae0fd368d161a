use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlProcessInfo_t};

use super::ffi::handle;
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
        let symbols = self.symbols();
        let clients = self.list(
            "nvmlDeviceGetMPSComputeRunningProcesses_v3",
            uuid,
            handle(&device),
            &symbols.nvmlDeviceGetMPSComputeRunningProcesses_v3,
        )?;
        let compute = self.list(
            "nvmlDeviceGetComputeRunningProcesses_v3",
            uuid,
            handle(&device),
            &symbols.nvmlDeviceGetComputeRunningProcesses_v3,
        )?;
        Ok(Processes {
            compute: compute.iter().map(usage).collect(),
            clients: clients.iter().map(usage).collect(),
            memory: self.memory(&device, uuid).ok(),
        })
    }

    /// Reads a list, in one call unless there are more processes than expected.
    fn list<E>(
        &self,
        call: &'static str,
        uuid: &str,
        device: nvmlDevice_t,
        symbol: &Result<List, E>,
    ) -> Result<Vec<nvmlProcessInfo_t>, NvmlError> {
        let mut room = EXPECTED;
        loop {
            let nobody = nvmlProcessInfo_t {
                pid: 0,
                usedGpuMemory: 0,
                gpuInstanceId: 0,
                computeInstanceId: 0,
            };
            let mut found = vec![nobody; room];
            let mut count = c_uint::try_from(room).unwrap_or(c_uint::MAX);
            let asked = self.call(call, uuid, symbol, |function| {
                // SAFETY: the handle came from this library; the buffer has room for the `count`
                // entries it is said to have.
                unsafe { function(device, &raw mut count, found.as_mut_ptr()) }
            });
            match asked {
                Ok(()) => {
                    found.truncate(count as usize);
                    return Ok(found);
                }
                // More processes may start before the next call.
                Err(error) if error.code() == Some(Code::INSUFFICIENT_SIZE) && room < LIMIT => {
                    room = (count as usize + EXPECTED).max(room * 2);
                }
                Err(error) => return Err(error),
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
