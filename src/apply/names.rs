//! A daemon waits for its name until the daemon that had it has stopped.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::mutex::lock;
use crate::plan::Plan;

/// The names of the daemons that are still to stop. A name may move to another GPU once its daemon has stopped.
pub(super) struct NamesInUse {
    names: Mutex<Vec<String>>,
    one_has_gone: Condvar,
}

/// The interval at which a wait checks whether it is pointless.
const INTERVAL: Duration = Duration::from_millis(100);

impl NamesInUse {
    pub(super) fn of(plan: &Plan) -> Self {
        Self {
            names: Mutex::new(plan.stops().map(|stop| stop.name.clone()).collect()),
            one_has_gone: Condvar::new(),
        }
    }

    /// Frees the name of a stopped daemon.
    pub(super) fn gone(&self, name: &str) {
        let mut names = lock(&self.names);
        if let Some(position) = names.iter().position(|other| other == name) {
            names.swap_remove(position);
        }
        self.one_has_gone.notify_all();
    }

    /// Waits until the name is free; returns false if the wait becomes pointless.
    pub(super) fn wait_for(&self, name: &str, is_pointless: impl Fn() -> bool) -> bool {
        let mut names = lock(&self.names);
        while names.iter().any(|other| other == name) {
            if is_pointless() {
                return false;
            }
            let waited = self.one_has_gone.wait_timeout(names, INTERVAL);
            names = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}
