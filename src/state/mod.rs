//! The run directory: records of devices, the journal of a change, the lock; and the profiles that were applied.

mod after_change;
mod history;
mod job;
mod leftovers;
pub mod record;
mod run_dir;
mod selftest;
mod writer;

pub use after_change::AfterChange;
pub use history::{AppliedProfile, JointDevices, ProfileHistory, RecordedGpu, TakenDown};
pub use job::JobRecord;
pub use leftovers::Misplaced;
pub use record::{
    Closing, DestroyedInstance, DeviceKey, DeviceRecord, InstanceKey, Journal, NextDaemon,
    NodeFile, OlderClient, Origin, ProcessId, RecordedInstance, StoppedDevice,
};
pub use run_dir::{RunDir, is_disk_full};
pub use selftest::{GpuUnderTest, SelftestRecord};
pub use writer::Writer;
