//! Rotation of large logs by `up`, which never fails because of them.

use std::time::Duration;

use super::locked_within;
use crate::apply;
use crate::host::{Environment, Home};
use crate::node::Node;
use crate::render::Ui;

/// Rotates large logs if there are any, under a lock of its own.
pub(super) fn put_aside(node: &Node, home: &Home, environment: &Environment, ui: &Ui) {
    if !apply::has_large_logs(node, home) {
        return;
    }
    // Not worth a wait: the next `up` finds them as well.
    match locked_within(environment, home, Duration::ZERO) {
        Ok(_lock) => put_aside_under_lock(node, home, environment, ui),
        Err(error) => ui.note(&format!("large logs could not be put aside: {error:#}")),
    }
}

/// Rotates large logs. The caller holds the lock.
pub(super) fn put_aside_under_lock(node: &Node, home: &Home, environment: &Environment, ui: &Ui) {
    for note in apply::put_logs_aside(environment, node, home) {
        ui.note(&note);
    }
}
