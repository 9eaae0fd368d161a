//! The run directory: records of devices, the journal of a change, the applied profile, the lock.

mod journal;
mod json;
mod key;
mod leftovers;
mod record;
mod run_dir;

pub use journal::{Journal, Taken};
pub use key::{DeviceKey, InstanceKey};
pub use record::{Created, DaemonId, DeviceRecord, NodeFile};
pub use run_dir::RunDir;
