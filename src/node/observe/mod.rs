//! Takes snapshots of the node.

mod ask;
mod hardware;
mod observer;
mod outside_mps;
mod probe;
mod records;
mod unmanaged;

pub use observer::{Detail, Observer, observe, observe_device, observe_records};
pub use records::{DeviceLogs, Logs};
