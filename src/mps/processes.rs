//! The MPS processes of a pipe directory, found through /proc.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::mps_program::{MpsProgram, is_daemon};
use super::{Daemon, MpsError};
use crate::host::{Host, Pid, Process, ProcessHandle, Uid};

/// The time that a process may take to exit after SIGTERM, which neither of NVIDIA's programs handles.
const TERM_LIMIT: Duration = Duration::from_secs(1);
/// The time that the kernel may take to end a process after SIGKILL: its GPU memory has to be freed.
const KILL_LIMIT: Duration = Duration::from_secs(3);

const PIPE_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// A process that runs an MPS program in the pipe directory.
#[derive(Clone, Debug)]
pub(super) struct MpsProcess {
    pub program: MpsProgram,
    pub process: Process,
}

impl Daemon {
    /// True if a process is a daemon of this pipe directory that runs as `owner`.
    pub(super) fn is_daemon_here(&self, process: &Process, owner: Uid) -> bool {
        process.owner() == Some(owner) && is_daemon(process) && serves_in(process, &self.pipe)
    }

    /// Returns the daemons of this pipe directory that run as `owner`, and all servers in it.
    pub(super) fn mps_processes(&self, host: &Host, owner: Uid) -> Vec<MpsProcess> {
        let table = host.processes().unwrap_or_default();
        let found = table.iter().filter_map(|process| {
            let program = MpsProgram::of(process)?;
            let is_here = match program {
                MpsProgram::Control => self.is_daemon_here(process, owner),
                MpsProgram::Server => serves_in(process, &self.pipe),
            };
            is_here.then(|| MpsProcess {
                program,
                process: process.clone(),
            })
        });
        found.collect()
    }

    /// True if a daemon of this pipe directory runs as `owner`, or a server runs in it.
    pub fn has_processes(&self, host: &Host, owner: Uid) -> bool {
        !self.mps_processes(host, owner).is_empty()
    }

    /// Ends the unrecorded processes of this pipe directory.
    pub fn end_unrecorded(&self, host: &Host, owner: Uid) -> Result<(), MpsError> {
        self.ended(&self.end_mps_processes(host, owner))
    }

    /// Ends the daemons of this pipe directory that run as `owner`, and then all servers in it. Returns those that the
    /// kernel does not end.
    pub(super) fn end_mps_processes(&self, host: &Host, owner: Uid) -> Vec<Pid> {
        let mut left = Vec::new();
        for program in [MpsProgram::Control, MpsProgram::Server] {
            // Found again each time: the daemon may have started a server meanwhile.
            let found = self.mps_processes(host, owner).into_iter();
            let held = found
                .filter(|found| found.program == program)
                .filter_map(|found| {
                    let pid = found.process.pid;
                    Some((pid, host.open_process(pid, found.process.started)?))
                });
            left.extend(end_all(&held.collect::<Vec<_>>()));
        }
        left
    }
}

/// True if a process was started with this pipe directory.
pub fn serves_in(process: &Process, pipe: &Path) -> bool {
    process
        .environment_bytes(PIPE_VARIABLE)
        .is_some_and(|value| Path::new(&value) == pipe)
}

/// Ends processes by SIGTERM, and by SIGKILL if they do not exit. Returns those that the kernel does not end.
pub(super) fn end_all(processes: &[(Pid, ProcessHandle)]) -> Vec<Pid> {
    for (_, held) in processes {
        let _ = held.signal(Signal::TERM);
        // A stopped process receives SIGTERM only after SIGCONT.
        let _ = held.signal(Signal::CONT);
    }
    kill_all_after(processes, TERM_LIMIT)
}

/// Kills the processes that have not exited after the limit. Returns those that the kernel does not end.
pub(super) fn kill_all_after(processes: &[(Pid, ProcessHandle)], limit: Duration) -> Vec<Pid> {
    let until = Instant::now() + limit;
    for (_, held) in processes {
        if !held.ends_by(until) {
            let _ = held.signal(Signal::KILL);
        }
    }
    let until = Instant::now() + KILL_LIMIT;
    let left = processes.iter().filter(|(_, held)| !held.ends_by(until));
    left.map(|(pid, _)| *pid).collect()
}

/// Lists pids for a message.
pub(super) fn list_pids(pids: &[Pid]) -> String {
    let pids: Vec<String> = pids.iter().map(|pid| format!("pid {pid}")).collect();
    pids.join(", ")
}
