//! Signals as the program inherits them.

use std::io;
use std::sync::Arc;

use signal_hook::consts::{SIGCHLD, SIGXFSZ};
use signal_hook::flag;

use super::Host;

impl Host {
    /// Takes an ignored SIGCHLD back: a process that ignores it loses the exit status of its children. Goes on after SIGXFSZ:
    /// a file that may not grow fails to be written, and what a change has done is undone.
    ///
    /// The handlers do nothing. What this process turns into or starts has the defaults again.
    ///
    /// # Errors
    /// The system's.
    pub fn reset_signals(&self) -> io::Result<()> {
        // Otherwise no handler: it would interrupt calls of the driver.
        if self.ignores(SIGCHLD) {
            flag::register(SIGCHLD, Arc::default())?;
        }
        flag::register(SIGXFSZ, Arc::default())?;
        Ok(())
    }

    /// Whether this process ignores a signal, as `/proc/self/status` shows it.
    pub(super) fn ignores(&self, signal: i32) -> bool {
        let status = std::fs::read_to_string(self.root.join("proc/self/status"));
        let mask = status
            .unwrap_or_default()
            .lines()
            .find_map(|line| line.strip_prefix("SigIgn:"))
            .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        // Bit 0 is signal 1.
        mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
    }
}
