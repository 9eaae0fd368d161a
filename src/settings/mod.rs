//! The MPS settings of a device, and the types of their values.

mod cpus;
mod device;
mod memory_limit;
mod serve;

pub use cpus::Cpus;
pub use device::{ClientPriority, ComputeMode, NOFILE, Percentage, Server, Settings};
pub use memory_limit::{LimitAnswer, MemoryLimit};
pub use serve::{NotServe, Serve};
