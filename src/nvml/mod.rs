//! NVML, the driver's management library. Unsafe code is here and in `host::spawn`.
//!
//! [`Nvml::open`] loads the library once per process. NVML has no time limits and a broken GPU can make any call hang,
//! so work runs in [`Nvml::supervise`]d tasks: each in another thread, which is abandoned when one of its calls exceeds
//! its limit. Calls are made on a [`GpuHandle`], through nvml-wrapper where it has them. All others go through the fields of
//! its symbol table, whose methods panic on a symbol that an older driver lacks.

mod error;
mod gpu;
mod health;
mod instances;
mod library;
mod profiles;
mod session;

pub use error::{Code, NvmlError};
pub use gpu::{
    DEFAULT_COMPUTE_MODE, EXCLUSIVE_PROCESS, GpuReading, GpuUsage, Memory, MigMode, Processes,
    Usage, compute_mode_name,
};
pub use health::{GpuHealth, RecoveryAction};
pub use instances::{ComputeInstanceReading, GpuInstanceReading};
pub use library::{Nvml, Watched};
pub use session::{GpuHandle, Session};
