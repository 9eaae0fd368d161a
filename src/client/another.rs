//! Another device, for a program that its own one does not admit.

use super::ready::{check_client_access, observe_device};
use crate::host::Environment;
use crate::node::Node;
use crate::state::DeviceRecord;

/// Returns the name of a device of the same size and limits that has no clients and takes programs of the caller.
pub fn another_device(
    environment: &Environment,
    node: &Node,
    record: &DeviceRecord,
) -> Option<String> {
    let size = |record: &DeviceRecord| {
        let settings = &record.settings;
        (
            (record.profile.clone(), record.key.gpus().len()),
            settings.active_thread_percentage,
            settings.pinned_memory_limit,
        )
    };
    node.served()
        .map(|other| &other.record)
        .filter(|other| other.name != record.name && size(other) == size(record))
        .find(|other| is_free(environment, node, &other.name))
        .map(|other| other.name.clone())
}

/// True if the device is known to have no clients, and takes programs of the caller.
fn is_free(environment: &Environment, node: &Node, name: &str) -> bool {
    observe_device(environment, node, name).is_ok_and(|device| {
        let gpus = device.record.gpu_positions();
        device.clients.are_none() && check_client_access(&device, environment.caller, &gpus).is_ok()
    })
}
