use std::time::{Duration, Instant};

use super::{Daemon, MpsError};
use crate::host::{Interrupt, Pid};

/// For how long somebody else's session is waited for, and how long the server may take: it finishes or drops the
/// client's outstanding GPU work first.
const PATIENCE: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(60);

/// For how long a terminated client may stay on its server's list. Measured: it leaves 50 ms later, with its process.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);

/// The same where the user wants the program to end.
const LEAVE_LIMIT_IF_ASKED: Duration = Duration::from_millis(300);

/// Between two looks at the list: the first pause doubles up to the longest, since each look adds to the daemon's log.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl Daemon {
    /// Ends a client's work on the GPU: its CUDA calls fail with error 810 from then on, its process goes on, and so
    /// do the other clients. The way to end a client without harm to the server; after it, the process may be killed
    /// (MPS guide, "Troubleshooting").
    ///
    /// # Errors
    /// [`MpsError::Failed`] with the answer, where that is not CUDA's success.
    pub fn terminate_client(&self, server: Pid, client: Pid) -> Result<(), MpsError> {
        self.terminate_client_within(server, client, PATIENCE, LIMIT)
    }

    /// The same within other limits.
    pub(super) fn terminate_client_within(
        &self,
        server: Pid,
        client: Pid,
        patience: Duration,
        limit: Duration,
    ) -> Result<(), MpsError> {
        let command = format!("terminate_client {server} {client}");
        let answer = self.session(&[&command], patience, limit)?;
        // The exit status tells nothing. The last line is CUDA's status; refusals are words.
        match answer.lines.last().map(|line| line.trim()) {
            Some("0") => Ok(()),
            _ => Err(self.failure(format!(
                "the control daemon was asked to {command:?} and answered {:?}",
                answer.lines.join("\n")
            ))),
        }
    }

    /// Waits until a server has such a client no more; tells whether that came to be in time, of which there is less
    /// once the program is asked to end.
    ///
    /// # Errors
    /// Where the daemon does not answer.
    pub fn loses_client(
        &self,
        server: Pid,
        client: Pid,
        interrupt: &Interrupt,
    ) -> Result<bool, MpsError> {
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        while self.has_client(server, client)? {
            let limit = if interrupt.is_asked() {
                LEAVE_LIMIT_IF_ASKED
            } else {
                LEAVE_LIMIT
            };
            if begun.elapsed() + pause > limit {
                return Ok(false);
            }
            // A client's end announces itself to nobody but its server.
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(true)
    }

    /// Whether a server has such a client.
    ///
    /// # Errors
    /// Where the daemon does not answer.
    pub fn has_client(&self, server: Pid, client: Pid) -> Result<bool, MpsError> {
        let glance = self.glance(&[server], false, PATIENCE, LIMIT)?;
        let mut servers = glance.servers.iter();
        Ok(servers.any(|seen| seen.pid == server && seen.clients.contains(&client)))
    }
}
