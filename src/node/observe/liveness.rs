//! Finds out whether daemons run, and whether they hang.

use std::path::PathBuf;
use std::time::Duration;

use super::probe::{Context, Probe};
use crate::host::{Pid, Process, StartTime, Uid, caller};
use crate::mps::{LockHolder, LogFile, is_daemon, logged_ready};
use crate::node::{DaemonState, Served};

/// Time that a process whose pipe directory is gone gets to exit, before it is called an orphan.
pub(super) const EXIT_GRACE: Duration = Duration::from_millis(50);

/// Time that the kernel gets to end a process: it took 290 ms on a machine under load, and a hung GPU can keep a process
/// for ever.
const END_LIMIT: Duration = Duration::from_secs(2);

/// Samples of the threads of a daemon that may hang, and the time between them.
const SAMPLES: u32 = 4;
const SAMPLE_INTERVAL: Duration = Duration::from_millis(25);

/// The bytes that are read from the end of a daemon's log.
const LOG_END: u64 = 64 << 10;

/// Time that a server may take to get its GPU: 0.3 s on an H200, and many start one after the other.
const START_LIMIT: Duration = Duration::from_secs(60);

impl Context<'_> {
    /// Sets the state of the recorded daemon as far as its process tells it; returns the pid if more can be found out.
    /// Only the recorded process counts: in a user's directory the user may hold any lock.
    pub(super) fn check_process(self, served: &mut Served) -> Option<Pid> {
        let record = &served.record;
        if record.boot_id != self.boot_id {
            return None;
        }
        let Some(id) = record.daemon else {
            return self.check_unrecorded(served);
        };
        if id.is_hidden(self.host) {
            served.state = DaemonState::Hidden;
            return None;
        }
        id.running(self.host)?;
        if self.is_unreachable(served) {
            // A process closes its files before it exits.
            if !self.ends_within(id.pid, id.start_time, EXIT_GRACE) {
                served.state = DaemonState::Orphan;
            }
            return None;
        }
        served.state = if served.record.finished {
            DaemonState::Hidden
        } else {
            DaemonState::Starting
        };
        Some(id.pid)
    }

    /// True if the process has exited or does within this time, or a while later if the kernel is ending it already.
    fn ends_within(self, pid: Pid, started: StartTime, limit: Duration) -> bool {
        let held = match self.host.open_process(pid, started) {
            Ok(Some(held)) => held,
            Ok(None) => return true,
            Err(_) => return false,
        };
        let is_ending = || self.host.process(pid).is_none_or(|now| now.is_ending);
        held.ends_within(limit) || is_ending() && held.ends_within(END_LIMIT)
    }

    /// Handles a daemon that its start has not recorded yet.
    fn check_unrecorded(self, served: &mut Served) -> Option<Pid> {
        let holder = match self.mps(served, None).lock_holder() {
            LockHolder::Process(pid) => self.host.process(pid).filter(is_daemon),
            LockHolder::Unseen | LockHolder::Hidden => {
                served.state = DaemonState::Hidden;
                return None;
            }
            LockHolder::Nobody => None,
        };
        if holder.is_some() {
            served.state = DaemonState::Starting;
        } else if !served.record.finished {
            served.state = self.unfinished;
        }
        Some(holder?.pid)
    }

    /// True if the daemon's pipe directory is gone or was replaced.
    pub(super) fn is_unreachable(self, served: &Served) -> bool {
        let daemon = self.mps(served, None);
        daemon.lock_holder() == LockHolder::Nobody && !daemon.is_covered()
    }
}

/// Returns the log directory that a daemon was started with. The environment of a user's daemon is not trusted.
pub(super) fn configured_logs(daemon: &Process) -> Option<PathBuf> {
    let is_trusted = [Some(Uid::ROOT), Some(caller())].contains(&daemon.owner());
    let configured = daemon.environment_bytes("CUDA_MPS_LOG_DIRECTORY");
    configured.filter(|_| is_trusted).map(PathBuf::from)
}

impl Probe<'_> {
    /// True if the daemon has exited, or does within this time.
    pub(super) fn is_gone(&self, limit: Duration) -> bool {
        let process = self.context.host.process(self.daemon);
        process.is_none_or(|process| {
            self.context
                .ends_within(self.daemon, process.started, limit)
        })
    }

    /// True if the daemon or a server does not wait for the next request, in several samples: it may hang. `None` if
    /// that is hidden.
    ///
    /// Measured on an H200: the main threads of healthy processes sit in `poll`, and so do all threads of a server
    /// without clients. On a hung device a worker thread of the server sits in a futex, then its main thread too, and
    /// the daemon's in `recvmsg` as soon as it sends the server a request.
    pub(super) fn is_busy(&self) -> Option<bool> {
        let servers = self.servers();
        let mut pids: Vec<Pid> = servers.iter().map(|server| server.pid).collect();
        pids.push(self.daemon);
        let has_clients = self
            .processes
            .is_none_or(|processes| !processes.clients.is_empty());
        let is_waiting = |process: &Process| {
            if process.pid == self.daemon || has_clients {
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
                if !is_waiting(&self.context.host.process(pid)?)? {
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
    pub(super) fn starts_a_server(&self) -> bool {
        self.servers().iter().any(|server| {
            let is_up = match self.processes {
                Some(_) => self.has_context(server.pid),
                None => self.was_ready(server),
            };
            !is_up && server.age().is_none_or(|age| age < START_LIMIT)
        })
    }

    /// True if a server has had more than enough time to get its GPU.
    pub(super) fn is_overdue(&self, server: Pid) -> bool {
        let process = self.context.table.get(server);
        process
            .and_then(Process::age)
            .is_some_and(|age| age >= START_LIMIT)
    }

    /// True if a server is young and has not been ready yet.
    pub(super) fn is_starting(&self, server: &Process) -> bool {
        server.age().is_none_or(|age| age < START_LIMIT) && !self.was_ready(server)
    }

    /// True if the server was ready once: it is older than the finished record, or the daemon logged it.
    fn was_ready(&self, server: &Process) -> bool {
        let record = &self.served.record;
        let recorded = self.served.run_dir.recorded_at(&record.uuid);
        let recorded = recorded.and_then(|at| at.elapsed().ok());
        let is_older = server
            .age()
            .zip(recorded)
            .is_some_and(|(age, recorded)| record.finished && age > recorded);
        let logs = self.logs.as_ref().filter(|_| !is_older);
        let log = logs.map(|logs| logs.end_of(LogFile::Control, LOG_END));
        is_older || log.is_some_and(|log| logged_ready(&log, server.pid))
    }
}
