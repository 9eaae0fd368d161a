//! Daemons and lock holders that are found in a pipe directory without a record.

use std::time::Duration;

use super::invocation::MULTIUSER;
use super::mps_program::{MpsProgram, servers_of};
use super::processes::{end_all, list_pids, open_all};
use super::{Daemon, LaunchOptions, LockHolder, MpsError};
use crate::host::{Host, Pid, Process, Uid, user_name};

/// The time that an unrecorded daemon may take to list its clients.
const QUERY_LIMIT: Duration = Duration::from_secs(2);

impl Daemon {
    /// Returns the unrecorded daemon in the directory if it fits the options. Stops all others of its user.
    pub(super) fn running(
        &self,
        host: &Host,
        wanted: &LaunchOptions,
    ) -> Result<Option<Process>, MpsError> {
        let owner = wanted.access.owner();
        let daemons = self.mps_processes(host, owner, MpsProgram::Control)?;
        let fits = |process: &Process| {
            let device = process.environment("CUDA_VISIBLE_DEVICES");
            let is_multiuser = process.command().contains(MULTIUSER);
            device.as_deref() == Some(&wanted.device) && is_multiuser == wanted.multiuser
        };
        if let [one] = daemons.as_slice() {
            let holds_lock = || self.lock_holder() == LockHolder::Process(one.pid);
            if fits(one) && self.has_socket() && holds_lock() {
                return Ok(Some(one.clone()));
            }
            self.refuse_clients(host, one)?;
        }
        let left = end_all(&open_all(host, &daemons)?);
        if left.is_empty() {
            return Ok(None);
        }
        Err(self.failure(format!(
            "daemons that nobody recorded run in {} and do not end: {}",
            self.pipe.display(),
            list_pids(&left)
        )))
    }

    /// Returns an error if a daemon has clients, or if it has a server and does not tell its clients.
    pub(super) fn refuse_clients(&self, host: &Host, daemon: &Process) -> Result<(), MpsError> {
        let table = host.processes()?;
        let servers: Vec<Pid> = servers_of(&table, daemon)
            .map(|server| server.pid)
            .collect();
        let status = match self.query(&servers, false, QUERY_LIMIT, QUERY_LIMIT) {
            Ok(status) => status,
            Err(_) if servers.is_empty() => return Ok(()),
            Err(error) => {
                return Err(self.failure(format!(
                    "a daemon that nobody recorded, pid {}, serves otherwise in {} and may have clients, for which it \
                     cannot be asked: {error}",
                    daemon.pid,
                    self.pipe.display(),
                )));
            }
        };
        let clients: Vec<Option<Pid>> = status
            .servers
            .into_iter()
            .flat_map(|server| server.clients)
            .collect();
        if clients.is_empty() {
            return Ok(());
        }
        let mut pids: Vec<String> = clients.iter().flatten().map(Pid::to_string).collect();
        let hidden = clients.len() - pids.len();
        pids.extend((hidden > 0).then(|| format!("{hidden} hidden")));
        Err(self.failure(format!(
            "a daemon that nobody recorded, pid {}, serves otherwise in {} and has clients: {}",
            daemon.pid,
            self.pipe.display(),
            pids.join(", ")
        )))
    }

    /// Describes a process that holds the lock and is not our daemon. Its lock does no harm: the file is removed next.
    pub(super) fn foreign_lock_holder(&self, host: &Host, owner: Uid) -> Option<String> {
        let pipe = self.pipe.display();
        match self.lock_holder() {
            LockHolder::Nobody => None,
            LockHolder::Unseen | LockHolder::Hidden => Some(format!(
                "a process that cannot be seen from here held the lock in {pipe}"
            )),
            LockHolder::Process(pid) => {
                let process = host.process(pid)?;
                // A dead daemon leaves its pid file.
                let holds =
                    !self.is_daemon_here(&process, owner) && process.owner() != Some(Uid::ROOT);
                let user = process.owner().map_or_else(|| "?".to_owned(), user_name);
                let name = process.program();
                holds.then(|| format!("pid {pid} ({user}, {name}) held the lock in {pipe}"))
            }
        }
    }
}
