//! Termination of single clients of a device. It cannot be undone, and disrupts no other client.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::cause::Cause;
use super::error::{ApplyError, Failure};
use crate::host::{Environment, MpsPrograms};
use crate::host::{Interrupt, ProcessHandle};
use crate::mps::Daemon;
use crate::plan::{Kill, Victim};

/// The time limit for a process to exit after a signal.
const SIGNAL_LIMIT: Duration = Duration::from_secs(10);

/// The time in which a process that fails on CUDA's error exits after it has left the server's list.
const A_MOMENT: Duration = Duration::from_millis(200);

/// The outcome for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The server terminated it; its process still runs.
    Work,
    /// The server terminated it, and its process exited by itself.
    WorkAndProcess,
    /// The server terminated it, and its process exited after a signal.
    AfterSignal,
    /// It left before it was terminated.
    Before,
    /// The server terminated it; the user interrupted the wait for its process to notice.
    Unnoticed,
    /// The server terminated it; the user interrupted the run before the signal was sent.
    Unsent,
    /// The server terminated it and the signal was sent; the user interrupted the wait for its exit.
    Unended,
}

impl Ended {
    /// True if the user interrupted it.
    const fn is_interrupted(self) -> bool {
        matches!(self, Self::Unnoticed | Self::Unsent | Self::Unended)
    }
}

/// Terminates clients one after another, and reports each once it has left its server's list. With a signal and its
/// name, sends that to the client's process too. A failure does not keep the others from being terminated.
///
/// # Errors
/// Names the clients that failed, and those that an interrupt left.
pub fn kill(
    kill: &Kill,
    environment: &Environment,
    programs: &MpsPrograms,
    signal: Option<(Signal, &'static str)>,
    say: &dyn Fn(&Victim, Ended),
) -> Result<(), ApplyError> {
    let _change = environment.interrupt.begin();
    let logs = environment.logs_of(kill.run_dir.path()).unwrap_or_default();
    let daemon = Daemon::new(
        programs.clone(),
        kill.program,
        kill.run_dir.pipe_dir(&kill.uuid),
        logs.join(&kill.uuid),
    );
    let mut error = ApplyError::default();
    for victim in &kill.victims {
        if environment.interrupt.is_asked() {
            error
                .left
                .push(format!("end the work of {}", victim.client));
            continue;
        }
        match end(victim, &daemon, environment, signal, kill.has_fault) {
            Ok(ended) => {
                say(victim, ended);
                error.interrupted |= ended.is_interrupted();
            }
            Err(cause) => {
                let failure = Failure::new(victim.client.to_string(), cause);
                error.failures.push(failure);
            }
        }
    }
    error.interrupted |= !error.left.is_empty();
    if error.interrupted || !error.failures.is_empty() {
        return Err(error);
    }
    Ok(())
}

fn end(
    victim: &Victim,
    daemon: &Daemon,
    environment: &Environment,
    signal: Option<(Signal, &'static str)>,
    has_fault: bool,
) -> Result<Ended, Cause> {
    let pid = victim.pid;
    let interrupt = &environment.interrupt;
    // Opened now: after its exit another process may get its pid.
    let held = victim
        .started
        .and_then(|started| environment.host.open_process(pid, started));
    // A fault has terminated it already, and a server that waits for its clients to leave does not answer.
    if !has_fault && let Err(error) = daemon.terminate_client(victim.server, pid) {
        return match daemon.has_client(victim.server, pid) {
            Ok(false) => Ok(Ended::Before),
            _ => Err(error.into()),
        };
    }
    let mut is_sent = false;
    if let (Some((signal, name)), Some(held)) = (signal, &held) {
        if interrupt.is_asked() && !held.ends_within(A_MOMENT) {
            return Ok(Ended::Unsent);
        }
        match held.signal(signal) {
            Err(_) if held.has_ended() => {}
            Err(error) => {
                return Err(Cause::NotSent {
                    signal: name,
                    error,
                });
            }
            Ok(()) if ends(held, interrupt) => is_sent = true,
            Ok(()) if interrupt.is_asked() => return Ok(Ended::Unended),
            Ok(()) => {
                return Err(Cause::StillThere {
                    signal: name,
                    after: SIGNAL_LIMIT,
                });
            }
        }
    }
    let is_off = daemon.await_client_exit(victim.server, pid, interrupt)?;
    if !is_off && !interrupt.is_asked() {
        return Err(Cause::StillClient);
    }
    Ok(match held {
        Some(_) if is_sent => Ended::AfterSignal,
        _ if !is_off => Ended::Unnoticed,
        // The process is not visible.
        None if victim.started.is_none() => Ended::Work,
        Some(held) if !held.ends_within(A_MOMENT) => Ended::Work,
        _ => Ended::WorkAndProcess,
    })
}

/// Waits for a process to exit after a signal; returns false on timeout or interrupt.
fn ends(held: &ProcessHandle, interrupt: &Interrupt) -> bool {
    let begun = Instant::now();
    // In slices: a signal that another thread gets does not end the wait.
    while !interrupt.is_asked() && begun.elapsed() < SIGNAL_LIMIT {
        if held.ends_within(A_MOMENT) {
            return true;
        }
    }
    held.has_ended()
}
