//! Snapshots of the node: its GPUs and devices, the daemons that serve them, and what is wrong with them.
//!
//! [`observe()`] takes a [`Node`]. It changes nothing and takes no lock.

mod daemon_health;
mod device_order;
mod device_word;
mod gpu;
mod health;
mod name_order;
mod no_such_device;
mod observe;
mod problem;
mod program;
mod served;
mod snapshot;
mod unmanaged;

pub use crate::mps::MpsProgram;
pub use daemon_health::restored;
pub use device_order::record_order;
pub use gpu::{Device, Gpu};
use no_such_device::LOST;
pub use no_such_device::{NoSuchDevice, lost_hint};
pub use observe::{
    Detail, DeviceLogs, Logs, ObserveError, Observer, observe, observe_device, observe_records,
};
pub use problem::{Problem, ProblemId};
pub use program::{Client, Clients, OutsideMps, ServerProcess, Stray};
pub use served::{DaemonState, Presence, Served, Unseen};
pub use snapshot::{Lost, Node, UnseenRunDir};
pub use unmanaged::{Unmanaged, Variable};
