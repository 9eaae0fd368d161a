//! Finds out whether a daemon hangs.

use std::time::Duration;

use super::probe::Probe;
use crate::host::{Pid, Process};

/// Samples of the threads of a daemon that may hang, and the time between them.
const SAMPLES: u32 = 4;
const SAMPLE_INTERVAL: Duration = Duration::from_millis(25);

/// Time that a server may take to get its GPU: 0.3 s on an H200, and many start one after the other.
const START_LIMIT: Duration = Duration::from_secs(60);

impl Probe<'_> {
    /// True if the daemon or a server does not wait for the next request, in several samples: it may hang. `None` if
    /// that is hidden.
    ///
    /// Measured on an H200: the main threads of healthy processes sit in `poll`, and so do all threads of a server
    /// without clients. On a hung device a worker thread of the server sits in a futex, then its main thread too, and
    /// the daemon's in `recvmsg` as soon as it sends the server a request.
    pub(super) fn is_busy(self, daemon: Pid) -> Option<bool> {
        let servers = self.servers(daemon);
        let mut pids: Vec<Pid> = servers.iter().map(|server| server.pid).collect();
        pids.push(daemon);
        let has_clients = self
            .processes
            .is_none_or(|processes| !processes.clients.is_empty());
        let is_waiting = |process: &Process| {
            if process.pid == daemon || has_clients {
                process.is_polling()
            } else {
                process.is_polling_in_all_threads()
            }
        };
        for sample in 0..SAMPLES {
            if sample > 0 {
                std::thread::sleep(SAMPLE_INTERVAL);
            }
            let mut busy = Vec::new();
            for &pid in &pids {
                if !is_waiting(&self.host.process(pid)?)? {
                    busy.push(pid);
                }
            }
            pids = busy;
            if pids.is_empty() {
                return Some(false);
            }
        }
        Some(true)
    }

    /// True if one of its servers has no GPU yet: until then the daemon answers nobody.
    pub(super) fn starts_a_server(self, daemon: Pid) -> bool {
        let is_new = |server: &&Process| {
            let has_context = self.has_context(server.pid);
            !has_context && server.age().is_none_or(|age| age < START_LIMIT)
        };
        self.servers(daemon).iter().any(is_new)
    }
}
