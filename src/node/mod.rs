//! Snapshots of the node: its GPUs and devices, the daemons that serve them, and what is wrong with them.
//!
//! [`observe()`] takes a [`Node`]. It changes nothing and takes no lock.

mod access;
mod applied;
mod closing;
mod daemon_findings;
mod device;
mod device_selector;
mod device_spelling;
mod device_words;
mod ending;
mod fault;
mod findings;
mod gpu;
mod health;
mod joint;
mod observe;
mod outside_cause;
mod served;
mod snapshot;
mod state;
mod stopped;

pub use crate::mps::MpsProgram;
pub use access::AccessFault;
pub use applied::Applied;
pub use closing::Closer;
pub use daemon_findings::{replace_remedy, restore_remedy};
pub use device::{Device, DevicePart, Presence};
pub use device_selector::{
    LOST_GPU_REMEDY, NoSuchDevice, ONE_DEVICE_HINT, device_order, glob_to_regex, is_glob,
    one_device_hint, start_again_hint,
};
pub use ending::DaemonEnding;
pub use fault::{Fault, Finding, NO_DRIVER, Severity};
pub use gpu::Gpu;
pub use observe::{
    ANSWER_TIMEOUT, Detail, DeviceLogs, Logs, Observer, SelectDevices, observe, observe_records,
    observe_without_driver,
};
pub use outside_cause::{OutsideCause, OutsideMps};
pub use served::{Client, Clients, Served, ServerProcess, Stray, Unmanaged, Variable};
pub use snapshot::{Node, Unseen};
pub use state::{DaemonState, DeviceState};
pub use stopped::describe_former_gpu;
