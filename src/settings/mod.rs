//! The MPS settings of a device: one table with a row for each, and the types of their values.

mod cpus;
mod device;
mod keys;
mod memory_limit;
mod share;
mod text;

pub use cpus::{CpuChoice, Cpus};
pub use device::{ClientPriority, NOFILE, Percentage, Reported, Serve, Server, Settings, Visible};
pub use keys::{
    ACTIVE_THREAD_PERCENTAGE, CLIENT_COUNT_RANGE, CLIENT_PRIORITY, COMPUTE_MODE, Control, KEYS,
    MAX_CLIENTS, OVERSUBSCRIBE, PINNED_MEMORY_LIMIT, SERVE, SHARE, SettingForm, SettingKey, Update,
    find_setting, setting_for_word, setting_named,
};
pub use memory_limit::{LimitAnswer, MemoryLimit};
pub use share::{DeviceSize, FOLLOW_A_SHARE, Multiprocessors, Oversubscription, Share};
pub use text::{WrongValue, display_or};
