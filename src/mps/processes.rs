//! The processes that serve in a pipe directory, by what the kernel says of them.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use super::program::{MpsProgram, is_daemon};
use super::{Daemon, MpsError};
use crate::host::{Held, Host, Pid, Process, Uid};

/// How long a process may take to end after SIGTERM, which neither of NVIDIA's programs handles.
const TERM_LIMIT: Duration = Duration::from_secs(1);
/// How long the kernel may take to end one after SIGKILL: its GPU memory has to be freed.
const KILL_LIMIT: Duration = Duration::from_secs(3);

const PIPE_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// Whether a process was found that serves in a pipe directory.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Which program it runs.
    pub program: MpsProgram,
    /// The process.
    pub process: Process,
}

impl Daemon {
    /// True if a process is a daemon of this pipe directory that runs as `owner`.
    pub(super) fn is_daemon_here(&self, process: &Process, owner: Uid) -> bool {
        process.owner() == Some(owner) && is_daemon(process) && serves_in(process, &self.pipe)
    }

    /// The daemons of this pipe directory that run as `owner`, and every server that says it serves here.
    pub(super) fn found(&self, host: &Host, owner: Uid) -> Vec<Found> {
        let table = host.processes().unwrap_or_default();
        let found = table.iter().filter_map(|process| {
            let program = MpsProgram::of(process)?;
            let is_here = match program {
                MpsProgram::Control => self.is_daemon_here(process, owner),
                MpsProgram::Server => serves_in(process, &self.pipe),
            };
            is_here.then(|| Found {
                program,
                process: process.clone(),
            })
        });
        found.collect()
    }

    /// True if a daemon of this pipe directory runs as `owner`, or a server serves there.
    pub fn has_processes(&self, host: &Host, owner: Uid) -> bool {
        !self.found(host, owner).is_empty()
    }

    /// Ends what serves in this pipe directory and nobody has recorded.
    pub fn end_unrecorded(&self, host: &Host, owner: Uid) -> Result<(), MpsError> {
        self.ended(&self.end_found(host, owner))
    }

    /// Ends every daemon of this pipe directory that runs as `owner`, and then every server there. Returns those
    /// that the kernel does not end.
    pub(super) fn end_found(&self, host: &Host, owner: Uid) -> Vec<Pid> {
        let mut left = Vec::new();
        for program in [MpsProgram::Control, MpsProgram::Server] {
            // Looked for anew: the daemon may have started a server meanwhile.
            let found = self.found(host, owner).into_iter();
            let held = found
                .filter(|found| found.program == program)
                .filter_map(|found| {
                    let pid = found.process.pid;
                    Some((pid, host.hold(pid, found.process.started)?))
                });
            left.extend(end_all(&held.collect::<Vec<_>>()));
        }
        left
    }
}

/// True if a process was started with that pipe directory.
pub fn serves_in(process: &Process, pipe: &Path) -> bool {
    process
        .environment_bytes(PIPE_VARIABLE)
        .is_some_and(|value| Path::new(&value) == pipe)
}

/// Ends processes, by force where SIGTERM does not do. Returns those that the kernel does not end.
pub(super) fn end_all(processes: &[(Pid, Held)]) -> Vec<Pid> {
    for (_, held) in processes {
        let _ = held.signal(Signal::TERM);
        // One that is stopped receives it only when it goes on.
        let _ = held.signal(Signal::CONT);
    }
    kill_all_after(processes, TERM_LIMIT)
}

/// Kills the processes that are left after a while. Returns those that the kernel does not end.
pub(super) fn kill_all_after(processes: &[(Pid, Held)], limit: Duration) -> Vec<Pid> {
    let until = std::time::Instant::now() + limit;
    for (_, held) in processes {
        if !held.ends_within(until.saturating_duration_since(std::time::Instant::now())) {
            let _ = held.signal(Signal::KILL);
        }
    }
    let until = std::time::Instant::now() + KILL_LIMIT;
    let is_left =
        |held: &Held| !held.ends_within(until.saturating_duration_since(std::time::Instant::now()));
    let left = processes.iter().filter(|(_, held)| is_left(held));
    left.map(|(pid, _)| *pid).collect()
}
