//! The run directory: records of devices, the journal of a change, the applied profile, the lock.

mod json;
mod leftovers;
mod record;
mod reserve;
mod run_dir;

pub use record::{
    Created, DaemonId, DeviceKey, DeviceRecord, InstanceKey, Journal, NodeFile, Taken,
};
pub use reserve::is_full;
pub use run_dir::RunDir;
