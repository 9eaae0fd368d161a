//! A daemon waits for its name until the daemon that had it has stopped.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::mutex::lock;
use crate::plan::Plan;

/// The names of the daemons that are still to stop. A name may move to another GPU once its daemon has stopped.
pub(super) struct NamesInUse {
    names: Mutex<Names>,
    one_has_gone: Condvar,
}

#[derive(Default)]
struct Names {
    /// Those of daemons that have not stopped yet.
    in_use: Vec<String>,
    /// Those of daemons that this run does not stop any more.
    kept: Vec<String>,
}

/// The outcome of a wait for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Free,
    /// The daemon that has it was not stopped.
    Kept,
    /// The run is over.
    Pointless,
}

/// The interval at which a wait checks whether it is pointless.
const INTERVAL: Duration = Duration::from_millis(100);

impl NamesInUse {
    pub(super) fn of(plan: &Plan) -> Self {
        Self::new(plan.stops().map(|stop| stop.name.clone()).collect())
    }

    fn new(in_use: Vec<String>) -> Self {
        let kept = Vec::new();
        Self {
            names: Mutex::new(Names { in_use, kept }),
            one_has_gone: Condvar::new(),
        }
    }

    /// Frees the name of a stopped daemon.
    pub(super) fn gone(&self, name: &str) {
        self.take(&mut lock(&self.names), name);
    }

    /// Ends every wait for the name of a daemon that this run does not stop any more.
    pub(super) fn keep(&self, name: &str) {
        let mut names = lock(&self.names);
        if self.take(&mut names, name) {
            names.kept.push(name.to_owned());
        }
    }

    fn take(&self, names: &mut Names, name: &str) -> bool {
        let position = names.in_use.iter().position(|other| other == name);
        position.map(|position| names.in_use.swap_remove(position));
        self.one_has_gone.notify_all();
        position.is_some()
    }

    /// Waits until the name is free, its daemon is not stopped any more, or the wait becomes pointless.
    pub(super) fn wait_for(&self, name: &str, is_pointless: impl Fn() -> bool) -> Name {
        let mut names = lock(&self.names);
        while names.in_use.iter().any(|other| other == name) {
            if is_pointless() {
                return Name::Pointless;
            }
            let waited = self.one_has_gone.wait_timeout(names, INTERVAL);
            names = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if names.kept.iter().any(|other| other == name) {
            return Name::Kept;
        }
        Name::Free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No command plans a start that waits for a stop which may fail without an end of the run: so this is no scene.
    #[test]
    fn nobody_waits_for_the_name_of_a_daemon_that_stays() {
        let names = NamesInUse::new(vec!["a".to_owned(), "b".to_owned()]);
        std::thread::scope(|scope| {
            let a = scope.spawn(|| names.wait_for("a", || false));
            let b = scope.spawn(|| names.wait_for("b", || false));
            names.gone("a");
            names.keep("b");
            assert_eq!(a.join().unwrap(), Name::Free);
            assert_eq!(b.join().unwrap(), Name::Kept);
        });
        // One that has stopped is not kept by the end of its GPU's run.
        names.keep("a");
        assert_eq!(names.wait_for("a", || false), Name::Free);
        let over = NamesInUse::new(vec!["c".to_owned()]);
        assert_eq!(over.wait_for("c", || true), Name::Pointless);
    }
}
