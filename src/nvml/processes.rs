use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlProcessInfo_t};

use super::ffi::handle;
use super::{Code, Memory, NvmlError, Session};

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

    /// One list in one call, unless there are more processes than anybody expects.
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
                // More may come until it is asked again.
                Err(error) if error.code() == Some(Code::INSUFFICIENT_SIZE) && room < LIMIT => {
                    room = (count as usize + EXPECTED).max(room * 2);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// A process list of NVML.
type List = unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_t) -> u32;

/// More processes than an MPS server admits, twice over.
const EXPECTED: usize = 128;

/// No driver has so many contexts on a GPU: an answer that asks for more is wrong.
const LIMIT: usize = 1 << 16;

/// `NVML_VALUE_NOT_AVAILABLE`, as an unsigned number.
const NOT_AVAILABLE: u64 = u64::MAX;

fn usage(info: &nvmlProcessInfo_t) -> Usage {
    Usage {
        pid: info.pid,
        memory: Some(info.usedGpuMemory).filter(|&bytes| bytes != NOT_AVAILABLE),
    }
}
