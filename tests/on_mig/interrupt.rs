//! Ctrl-C and SIGTERM: what was begun is given back first.

use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Ends the run at its next step, instead of the process at once.
pub(crate) fn watch() {
    ctrlc::set_handler(|| {
        INTERRUPTED.store(true, Ordering::SeqCst);
        eprintln!("Interrupted: the GPU is given back as it was. Please wait.");
    })
    .expect("nobody else handles signals");
}

/// True if the run is to end.
pub(crate) fn is_wanted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}
