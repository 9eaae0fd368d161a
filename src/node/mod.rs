//! Snapshots of the node: its GPUs and devices, the daemons that serve them, and what is wrong with them.
//!
//! [`observe()`] takes a [`Node`]. It changes nothing and takes no lock.

mod client;
mod daemon_health;
mod device;
mod drift;
mod gpu;
mod health;
mod log_growth;
mod logs;
mod name_order;
mod no_such_device;
mod observe;
mod outside_mps;
mod problem;
mod remarks;
mod served;
mod snapshot;
mod stray;
mod unaccounted;
mod unmanaged;
mod variable;

pub use crate::mps::MpsProgram;
pub use client::{Client, Clients, ServerProcess};
pub use device::Device;
pub use gpu::Gpu;
pub use logs::{DeviceLogs, Logs};
pub use no_such_device::NoSuchDevice;
pub use observe::{Detail, ObserveError, Observer, observe};
pub use outside_mps::OutsideMps;
pub use problem::Problem;
pub use served::{DaemonState, Served};
pub use snapshot::Node;
pub use stray::Stray;
pub use unmanaged::Unmanaged;
pub use variable::Variable;
