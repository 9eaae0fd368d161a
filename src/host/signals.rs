//! The signals that the program inherits.

use std::io;
use std::sync::Arc;

use signal_hook::consts::{SIGCHLD, SIGXFSZ};
use signal_hook::flag;

use super::Host;
use super::files::field;

impl Host {
    /// Handles SIGCHLD if it is ignored: a process that ignores it loses the exit status of its children. Handles SIGXFSZ,
    /// so that writing too large a file fails and the change is rolled back.
    ///
    /// The handlers do nothing. Programs that this process starts or becomes have the default actions again.
    pub fn reset_signals(&self) -> io::Result<()> {
        // Only if needed: a handler interrupts calls of the driver.
        if self.ignores(SIGCHLD) {
            flag::register(SIGCHLD, Arc::default())?;
        }
        flag::register(SIGXFSZ, Arc::default())?;
        Ok(())
    }

    /// True if this process ignores a signal, according to `/proc/self/status`.
    pub(super) fn ignores(&self, signal: i32) -> bool {
        let mask = field(self.root.join("proc/self/status"), "SigIgn:")
            .and_then(|mask| u64::from_str_radix(&mask, 16).ok());
        // Bit 0 is signal 1.
        mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
    }
}
