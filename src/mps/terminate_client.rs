//! Ends the work of one client through its daemon.

use std::time::{Duration, Instant};

use super::session::PATIENCE;
use super::{Daemon, MpsError};
use crate::host::{Interrupt, Pid};

/// The time that a server may take: it first finishes or drops the client's outstanding GPU work.
const LIMIT: Duration = Duration::from_secs(60);

/// The time that a terminated client may stay in its server's list. Measured: it leaves the list after 50 ms, with its
/// process.
const EXIT_LIMIT: Duration = Duration::from_secs(5);

/// The same after the user has interrupted mig-mps.
const EXIT_LIMIT_IF_INTERRUPTED: Duration = Duration::from_millis(300);

/// The pause between two queries of the list. It doubles up to the longest, because each query adds to the daemon's
/// log.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl Daemon {
    /// Ends a client's work on the GPU: from then on its CUDA calls fail with error 810. Its process and the other
    /// clients go on. Afterwards the process may be killed without harm to the server (MPS guide, "Troubleshooting").
    pub fn terminate_client(&self, server: Pid, client: Pid) -> Result<(), MpsError> {
        self.terminate_client_within(server, client, PATIENCE, LIMIT)
    }

    /// The same with other limits.
    pub(super) fn terminate_client_within(
        &self,
        server: Pid,
        client: Pid,
        patience: Duration,
        limit: Duration,
    ) -> Result<(), MpsError> {
        let command = format!("terminate_client {server} {client}");
        let answer = self.session(std::slice::from_ref(&command), patience, limit)?;
        // The exit status is always 0. The last line is CUDA's status; refusals are words.
        match answer.lines.last().map(|line| line.trim()) {
            Some("0") => Ok(()),
            _ => Err(self.failure(format!(
                "the control daemon was asked to {command:?} and answered {:?}",
                answer.lines.join("\n")
            ))),
        }
    }

    /// Waits for a client to leave its server. Returns false on timeout, which is shorter after an interrupt.
    pub fn await_client_exit(
        &self,
        server: Pid,
        client: Pid,
        interrupt: &Interrupt,
    ) -> Result<bool, MpsError> {
        let start = Instant::now();
        let mut pause = FIRST_PAUSE;
        while self.has_client(server, client)? {
            let limit = if interrupt.is_asked() {
                EXIT_LIMIT_IF_INTERRUPTED
            } else {
                EXIT_LIMIT
            };
            if start.elapsed() + pause > limit {
                return Ok(false);
            }
            // Only the server can wait for the exit of its client.
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(true)
    }

    /// True if a client is in a server's list.
    pub fn has_client(&self, server: Pid, client: Pid) -> Result<bool, MpsError> {
        let status = self.query(&[server], false, PATIENCE, LIMIT)?;
        let mut servers = status.servers.iter();
        Ok(servers.any(|known| known.pid == server && known.clients.contains(&Some(client))))
    }
}
