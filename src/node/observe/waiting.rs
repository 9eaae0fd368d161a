//! Finds programs that wait for a server.

use super::probe::Probe;
use crate::host::Pid;
use crate::mps::{LogDir, LogFile, pending};
use crate::node::client::Client;
use crate::node::served::{DaemonState, Served};
use crate::settings::Serve;

/// The bytes that are read from the end of a daemon's log: half a day of a program that asks every ten seconds.
const LOG_END: u64 = 1 << 20;

impl Probe<'_> {
    /// Finds the programs that wait in `cuInit` because another user's are served. Only the daemon's log names them.
    /// With `serve = "all"` nobody waits.
    pub(super) fn find_waiting(self, served: &mut Served, logs: Option<&LogDir>) {
        let is_occupied =
            !served.clients.listed().is_empty() || served.state == DaemonState::Starting;
        let Some(logs) =
            logs.filter(|_| is_occupied && served.record.settings.serve != Some(Serve::All))
        else {
            return;
        };
        // Includes a log that was rotated a moment ago.
        let log = logs.end_of(LogFile::Control, LOG_END);
        let computes = |pid: Pid| self.usages().any(|usage| usage.pid == pid.0);
        let waiting: Vec<Client> = pending(&log)
            .into_iter()
            .filter(|(pid, _)| !served.clients.have(*pid))
            .filter(|(pid, _)| !computes(*pid))
            .map(|(pid, user)| (self.client(Some(pid), None), user))
            // Another process may have the pid by now.
            .filter(|(client, user)| client.user == Some(*user))
            .map(|(client, _)| client)
            .collect();
        served.waiting = waiting;
    }
}
