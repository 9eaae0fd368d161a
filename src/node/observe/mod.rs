//! Takes snapshots of the node.

mod ask;
mod hardware;
mod observer;
mod outside_mps;
mod pods;
mod probe;
mod records;
mod unmanaged;

pub use ask::ANSWER_TIMEOUT;
pub use observer::{Detail, Observer, observe, observe_records, observe_without_driver};
pub use records::{DeviceLogs, Logs};
