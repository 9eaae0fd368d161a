//! Rotation of large logs by `up`, which never fails for that reason.

use std::time::Duration;

use super::locked_within;
use crate::apply;
use crate::host::{Directories, Environment};
use crate::node::Node;
use crate::render::Ui;

/// Rotates large logs if there are any, under a lock of its own.
pub(super) fn put_aside(
    node: &Node,
    directories: &Directories,
    environment: &Environment,
    ui: &Ui,
) {
    if !apply::has_large_logs(node, directories) {
        return;
    }
    // Not worth a wait: the next `up` finds them as well.
    match locked_within(environment, directories, Duration::ZERO) {
        Ok(_lock) => put_aside_under_lock(node, directories, environment, ui),
        Err(error) => ui.note(&format!("large logs could not be put aside: {error:#}")),
    }
}

/// Rotates large logs. The caller holds the lock.
pub(super) fn put_aside_under_lock(
    node: &Node,
    directories: &Directories,
    environment: &Environment,
    ui: &Ui,
) {
    for note in apply::put_logs_aside(environment, node, directories) {
        ui.note(&note);
    }
}
