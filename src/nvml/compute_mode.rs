use nvml_wrapper_sys::bindings::nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS;

use super::ffi::{handle, symbol};
use super::{NvmlError, Session};

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
