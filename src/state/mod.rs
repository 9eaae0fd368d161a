//! The run directory: records of devices, the journal of a change, the applied profile, the lock.

mod leftovers;
mod record;
mod run_dir;

pub use record::{
    Created, DaemonId, DeviceKey, DeviceRecord, InstanceKey, Journal, NodeFile, Taken,
};
pub use run_dir::{RunDir, is_full};
