//! Another device, for a program that its own one does not admit.

use super::ready::{check_client_access, observe_device};
use crate::host::{Environment, Uid};
use crate::node::Node;
use crate::state::DeviceRecord;

/// The most devices whose daemons are asked for a refused program.
const MAX_ASKED: usize = 8;

/// Returns the name of a device like this one that has no clients and takes programs of this user.
pub fn another_device(
    environment: &Environment,
    node: &Node,
    record: &DeviceRecord,
    user: Uid,
) -> Option<String> {
    node.served()
        .map(|other| &other.record)
        .filter(|other| other.name != record.name && are_alike(other, record))
        .take(MAX_ASKED)
        .find(|other| is_free(environment, node, &other.name, user))
        .map(|other| other.name.clone())
}

/// True if a program gets as much of one device as of the other, as far as records tell.
fn are_alike(one: &DeviceRecord, other: &DeviceRecord) -> bool {
    let (of_one, of_other) = (&one.settings, &other.settings);
    one.profile == other.profile
        && one.key.gpus().len() == other.key.gpus().len()
        && of_one.active_thread_percentage == of_other.active_thread_percentage
        && of_one.pinned_memory_limit == of_other.pinned_memory_limit
}

/// True if the device is known to have no clients, and takes programs of this user.
fn is_free(environment: &Environment, node: &Node, name: &str, user: Uid) -> bool {
    observe_device(environment, node, name).is_ok_and(|device| {
        let gpus = device.record.gpu_positions();
        device.clients.are_none() && check_client_access(&device, user, &gpus).is_ok()
    })
}
