//! The MPS settings of a device: one table with a row for each, and the types of their values.

mod cpus;
mod device;
mod keys;
mod memory_limit;
mod text;

pub use cpus::{CpuChoice, Cpus};
pub use device::{ClientPriority, NOFILE, Percentage, Reported, Serve, Server, Settings};
pub use keys::{
    ACTIVE_THREAD_PERCENTAGE, CLIENT_PRIORITY, COMPUTE_MODE, Control, KEYS, PINNED_MEMORY_LIMIT,
    SERVE, SettingForm, SettingKey, Update,
};
pub use memory_limit::{LimitAnswer, MemoryLimit};
pub use text::WrongValue;
