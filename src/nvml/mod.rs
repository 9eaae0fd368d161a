//! NVML, the driver's management library. Unsafe code is here and in `host::spawn`.
//!
//! [`Nvml::open`] loads the library once per process. NVML has no time limits and a broken GPU can make any call hang,
//! so work runs in [`Nvml::supervise`]d tasks: each in another thread, which is abandoned when one of its calls exceeds
//! its limit. Calls go through the library's symbol table, because the methods of nvml-wrapper panic on a symbol that an
//! older driver lacks.

mod compute_instances;
mod compute_mode;
mod error;
mod ffi;
mod gpu;
mod gpu_instances;
mod library;
mod mig_devices;
mod mig_mode;
mod processes;
mod profiles;
mod session;
mod supervise;

pub use compute_instances::ComputeInstanceReading;
pub use compute_mode::{EXCLUSIVE_PROCESS, compute_mode_in_words};
pub use error::{Code, NvmlError};
pub use gpu::{GpuReading, Memory};
pub use gpu_instances::GpuInstanceReading;
pub use library::Nvml;
pub use mig_mode::MigMode;
pub use processes::{Processes, Usage};
pub use session::Session;
pub use supervise::Watched;
