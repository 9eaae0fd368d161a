//! Takes snapshots of the node.

mod daemon_passive;
mod daemon_session;
mod hardware;
mod idle_pods;
mod jobs;
mod observer;
mod outside_mps;
mod records;
mod unmanaged;

pub use daemon_session::ANSWER_TIMEOUT;
pub use observer::{
    Detail, Observer, SelectDevices, observe, observe_records, observe_without_driver,
};
pub use records::{DeviceLogs, Logs};
