//! Jobs of batch systems: their devices when a job begins, and their programs when it ends.

mod leftovers;
mod ready;

pub use leftovers::{end_leftovers, find_leftover};
pub use ready::heal_devices;
