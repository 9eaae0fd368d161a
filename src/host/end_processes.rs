//! Ends processes by signals.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Pid, ProcessHandle};

/// The time that a process may take to exit after SIGTERM. NVIDIA's programs do not handle it.
const SIGTERM_TIMEOUT: Duration = Duration::from_secs(1);

/// The time that the kernel may take to end a process after SIGKILL: its GPU memory has to be freed.
const SIGKILL_TIMEOUT: Duration = Duration::from_secs(3);

/// Ends processes by SIGTERM, and by SIGKILL if they do not exit. Returns those that the kernel does not end.
pub fn end_processes(processes: &[ProcessHandle]) -> Vec<Pid> {
    for held in processes {
        let _ = held.send_signal(Signal::TERM);
        // A stopped process receives SIGTERM only after SIGCONT.
        let _ = held.send_signal(Signal::CONT);
    }
    kill_processes_after(processes, SIGTERM_TIMEOUT)
}

/// Kills the processes that have not exited after the limit. Returns those that the kernel does not end.
pub fn kill_processes_after(processes: &[ProcessHandle], limit: Duration) -> Vec<Pid> {
    let until = Instant::now() + limit;
    for held in processes {
        if !held.wait_for_exit_until(until) {
            let _ = held.send_signal(Signal::KILL);
        }
    }
    let until = Instant::now() + SIGKILL_TIMEOUT;
    processes
        .iter()
        .filter(|held| !held.wait_for_exit_until(until))
        .map(|held| held.pid)
        .collect()
}
