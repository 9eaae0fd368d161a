//! Devices: their names and UUIDs, lists of devices, and devices that are gone.

mod list;
mod lost;
mod moved_names;
pub(crate) mod uuids;
mod words;
