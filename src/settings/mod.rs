//! The MPS settings of a device: one table with a row for each, and the types of their values.

mod cpus;
mod device;
mod key;
mod keys;
mod memory_limit;
mod reported;
mod serve;
mod text;
mod wrong_value;

pub use cpus::{CpuChoice, Cpus};
pub use device::{ClientPriority, NOFILE, Percentage, Server, Settings};
pub use key::{Control, Form, SettingKey, Update};
pub use keys::{
    ACTIVE_THREAD_PERCENTAGE, CLIENT_PRIORITY, COMPUTE_MODE, KEYS, PINNED_MEMORY_LIMIT, SERVE,
};
pub use memory_limit::{LimitAnswer, MemoryLimit};
pub use reported::Reported;
pub use serve::Serve;
pub use wrong_value::WrongValue;
