//! Rotation of large logs by `up`, which never fails for that reason.

use std::time::Duration;

use super::locked;
use crate::apply;
use crate::host::{Directories, Environment};
use crate::node::Node;
use crate::render::note;

/// Rotates large logs if there are any, under a lock of its own.
pub(super) fn put_aside(node: &Node, directories: &Directories, environment: &Environment) {
    if !apply::has_large_logs(node, directories) {
        return;
    }
    // Not worth a wait: the next `up` finds them as well.
    match locked(environment, directories, Duration::ZERO) {
        Ok(_lock) => put_aside_under_lock(node, directories, environment),
        Err(error) => note(&format!("large logs could not be put aside: {error:#}")),
    }
}

/// Rotates large logs. The caller holds the lock.
pub(super) fn put_aside_under_lock(
    node: &Node,
    directories: &Directories,
    environment: &Environment,
) {
    for kept in apply::put_logs_aside(environment, node, directories) {
        note(&kept);
    }
}
