//! Takes snapshots of the node.

mod ask;
mod daemons;
mod detail;
mod hardware;
mod liveness;
mod log_growth;
mod logs;
mod observer;
mod one_device;
mod outside_mps;
mod passive;
mod probe;
mod records;
mod strays;
mod unmanaged;
mod unrecorded;

pub use detail::Detail;
pub use logs::{DeviceLogs, Logs};
pub use observer::{ObserveError, Observer, observe};
pub use one_device::{observe_device, observe_records};
