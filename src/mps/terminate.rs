use std::time::Duration;

use super::{Daemon, MpsError};
use crate::host::Pid;

/// For how long somebody else's session is waited for, and how long the server may take: it finishes or drops the
/// client's outstanding GPU work first.
const PATIENCE: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(60);

impl Daemon {
    /// Ends a client's work on the GPU: its CUDA calls fail with error 810 from then on, its process goes on, and so
    /// do the other clients. The way to end a client without harm to the server; after it, the process may be killed
    /// (MPS guide, "Troubleshooting").
    ///
    /// # Errors
    /// [`MpsError::Failed`] with the answer, where that is not CUDA's success.
    pub fn terminate_client(&self, server: Pid, client: Pid) -> Result<(), MpsError> {
        let command = format!("terminate_client {server} {client}");
        let answer = self.session(&[&command], PATIENCE, LIMIT)?;
        // The exit status tells nothing. The last line is CUDA's status; refusals are words.
        match answer.lines.last().map(|line| line.trim()) {
            Some("0") => Ok(()),
            _ => Err(self.failure(format!(
                "the control daemon was asked to {command:?} and answered {:?}",
                answer.lines.join("\n")
            ))),
        }
    }
}
