//! Another device, for a program that its own one does not admit.

use super::NoAccess;
use super::ready::{NotReady, check_client_access, observe_device};
use crate::host::Environment;
use crate::node::Node;
use crate::state::DeviceRecord;

/// Names a free device of the same size in the refusal of a device that is closed to new programs.
pub fn name_another_device(environment: &Environment, node: &Node, refused: NotReady) -> NotReady {
    let NotReady::NoAccess(NoAccess::Closing {
        name,
        closing,
        opens_again,
        ..
    }) = refused
    else {
        return refused;
    };
    let size = |record: &DeviceRecord| (record.profile.clone(), record.key.gpus().len());
    let wanted = node.served_named(&name).map(|served| size(&served.record));
    let mut names = node
        .served()
        .map(|other| &other.record)
        .filter(|other| other.name != name && Some(size(other)) == wanted)
        .map(|other| &other.name);
    let instead = names
        .find(|other| is_free(environment, node, other))
        .cloned();
    NotReady::NoAccess(NoAccess::Closing {
        name,
        closing,
        opens_again,
        instead,
    })
}

/// True if the device is known to have no clients, and takes programs of the caller.
fn is_free(environment: &Environment, node: &Node, name: &str) -> bool {
    observe_device(environment, node, name).is_ok_and(|device| {
        let gpus = device.record.gpu_positions();
        device.clients.are_none() && check_client_access(&device, environment.caller, &gpus).is_ok()
    })
}
