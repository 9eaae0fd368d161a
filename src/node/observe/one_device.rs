//! Finds out about devices without the driver: programs start often, and soon.

use super::detail::Detail;
use super::observer::ObserveError;
use super::probe::Answers;
use super::{daemons, records};
use crate::host::{Environment, ProcessTable};
use crate::node::Node;

/// Reads the records alone, which says nothing about daemons.
pub fn observe_records(environment: &Environment) -> Result<Node, ObserveError> {
    let mut node = Node {
        boot_id: environment.host.boot_id().map_err(ObserveError::Proc)?,
        detail: Detail::Clients,
        has_no_driver: true,
        ..Node::default()
    };
    records::read_records(environment, &mut node);
    Ok(node)
}

/// Finds out the state of one device's daemon, with its servers and clients, from its processes and a control session.
/// The other devices are removed from the node.
pub fn observe_device(environment: &Environment, node: &mut Node, name: &str) {
    node.served.retain(|served| served.record.name == name);
    node.driver = environment.host.driver_version().unwrap_or_default();
    let mut daemons = node.served.iter().filter_map(|served| served.record.daemon);
    let table = match daemons.next() {
        // A daemon that has exited has no family.
        Some(daemon) => environment.host.family(daemon.pid).unwrap_or_default(),
        None => ProcessTable::default(),
    };
    daemons::observe(environment, &table, node.detail, node, &mut Answers::new());
}
