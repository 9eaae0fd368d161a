//! What `up` does about logs that have grown too large. It never fails for it.

use std::time::Duration;

use super::locked_within;
use crate::apply;
use crate::host::{Environment, Home};
use crate::node::Node;
use crate::render::Ui;

/// Puts large logs aside where there is nothing else to do: without any there is nothing to lock either.
pub(super) fn put_aside(node: &Node, home: &Home, environment: &Environment, ui: &Ui) {
    if !apply::has_large_logs(node, home) {
        return;
    }
    // Nobody need wait for that: the next `up` finds them as well.
    match locked_within(environment, home, Duration::ZERO) {
        Ok(_lock) => put_aside_under_lock(node, home, environment, ui),
        Err(error) => ui.note(&format!("large logs could not be put aside: {error:#}")),
    }
}

/// Puts large logs aside; the lock is held.
pub(super) fn put_aside_under_lock(node: &Node, home: &Home, environment: &Environment, ui: &Ui) {
    for note in apply::put_logs_aside(environment, node, home) {
        ui.note(&note);
    }
}
