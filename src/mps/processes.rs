//! The MPS processes of a pipe directory, found through /proc.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::mps_program::{MpsProgram, is_daemon, is_server};
use super::{Daemon, MpsError};
use crate::host::{Host, Pid, Process, ProcessHandle, Uid};

/// The time that a process may take to exit after SIGTERM, which neither of NVIDIA's programs handles.
const TERM_LIMIT: Duration = Duration::from_secs(1);
/// The time that the kernel may take to end a process after SIGKILL: its GPU memory has to be freed.
const KILL_LIMIT: Duration = Duration::from_secs(3);

const PIPE_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";

impl Daemon {
    /// True if a process is a daemon of this pipe directory that runs as `owner`.
    pub(super) fn is_daemon_here(&self, process: &Process, owner: Uid) -> bool {
        process.owner() == Some(owner) && is_daemon(process) && serves_in(process, &self.pipe)
    }

    /// Returns the daemons of this pipe directory that run as `owner`, or all servers in it.
    pub(super) fn mps_processes(
        &self,
        host: &Host,
        owner: Uid,
        program: MpsProgram,
    ) -> io::Result<Vec<Process>> {
        let table = host.processes()?;
        let is_here = |process: &&Process| match program {
            MpsProgram::Control => self.is_daemon_here(process, owner),
            MpsProgram::Server => is_server(process) && serves_in(process, &self.pipe),
        };
        Ok(table.iter().filter(is_here).cloned().collect())
    }

    /// Returns the number of daemons of this pipe directory that run as `owner`, and of servers in it.
    pub fn count_processes(&self, host: &Host, owner: Uid) -> io::Result<usize> {
        let daemons = self.mps_processes(host, owner, MpsProgram::Control)?;
        let servers = self.mps_processes(host, owner, MpsProgram::Server)?;
        Ok(daemons.len() + servers.len())
    }

    /// Ends the unrecorded processes of this pipe directory. With `spares_clients`, a daemon that has some, or does not
    /// tell, is an error.
    pub fn end_unrecorded(
        &self,
        host: &Host,
        owner: Uid,
        spares_clients: bool,
    ) -> Result<(), MpsError> {
        if spares_clients {
            for daemon in self.mps_processes(host, owner, MpsProgram::Control)? {
                self.refuse_clients(host, &daemon)?;
            }
        }
        self.ended(&self.end_mps_processes(host, owner)?)
    }

    /// Ends the daemons of this pipe directory that run as `owner`, and then all servers in it. Returns those that the
    /// kernel does not end.
    pub(super) fn end_mps_processes(&self, host: &Host, owner: Uid) -> io::Result<Vec<Pid>> {
        let mut left = Vec::new();
        // Found one after the other: the daemon may have started a server meanwhile.
        for program in [MpsProgram::Control, MpsProgram::Server] {
            let found = self.mps_processes(host, owner, program)?;
            left.extend(end_all(&open_all(host, &found)?));
        }
        Ok(left)
    }
}

/// Opens the processes that are still there.
pub(super) fn open_all<'p>(
    host: &Host,
    processes: impl IntoIterator<Item = &'p Process>,
) -> io::Result<Vec<ProcessHandle>> {
    let open = |process: &Process| host.open_process(process.pid, process.started);
    processes
        .into_iter()
        .filter_map(|process| open(process).transpose())
        .collect()
}

/// True if a process was started with this pipe directory.
pub fn serves_in(process: &Process, pipe: &Path) -> bool {
    process
        .environment_bytes(PIPE_VARIABLE)
        .is_some_and(|value| Path::new(&value) == pipe)
}

/// Ends processes by SIGTERM, and by SIGKILL if they do not exit. Returns those that the kernel does not end.
pub(super) fn end_all(processes: &[ProcessHandle]) -> Vec<Pid> {
    for held in processes {
        let _ = held.signal(Signal::TERM);
        // A stopped process receives SIGTERM only after SIGCONT.
        let _ = held.signal(Signal::CONT);
    }
    kill_all_after(processes, TERM_LIMIT)
}

/// Kills the processes that have not exited after the limit. Returns those that the kernel does not end.
pub(super) fn kill_all_after(processes: &[ProcessHandle], limit: Duration) -> Vec<Pid> {
    let until = Instant::now() + limit;
    for held in processes {
        if !held.ends_by(until) {
            let _ = held.signal(Signal::KILL);
        }
    }
    let until = Instant::now() + KILL_LIMIT;
    let left = processes.iter().filter(|held| !held.ends_by(until));
    left.map(|held| held.pid).collect()
}

/// Lists pids for a message.
pub(super) fn list_pids(pids: &[Pid]) -> String {
    let pids: Vec<String> = pids.iter().map(|pid| format!("pid {pid}")).collect();
    pids.join(", ")
}
