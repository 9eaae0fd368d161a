//! The end of clients' work on a device. It cannot be undone, and nobody else is disturbed.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::cause::Cause;
use super::error::{ApplyError, Failure};
use crate::host::{Environment, MpsPrograms};
use crate::host::{Held, Interrupt};
use crate::mps::Daemon;
use crate::plan::{Kill, Victim};

/// How long a process may take to end by a signal.
const SIGNAL_LIMIT: Duration = Duration::from_secs(10);

/// How long a process that ends because of CUDA's error takes from leaving the list to its end.
const A_MOMENT: Duration = Duration::from_millis(200);

/// What became of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its work has ended.
    Work,
    /// Its work has ended, and its process soon after.
    WorkAndProcess,
    /// Its work has ended, and its process, which was sent a signal.
    AfterSignal,
    /// It had gone before anything was done.
    Before,
    /// Its work has ended; the user has interrupted the wait for its process to notice.
    Unnoticed,
    /// Its work has ended; the user has interrupted it before the process was sent the signal.
    Unsent,
    /// Its work has ended, and its process was sent the signal; the user has interrupted the wait for its end.
    Unended,
}

impl Ended {
    /// Whether the user has interrupted it.
    const fn is_interrupted(self) -> bool {
        matches!(self, Self::Unnoticed | Self::Unsent | Self::Unended)
    }
}

/// Ends the work of one client after another, and says so of each once it has left its server's list; with a signal and
/// its name, that is then sent to its process. A client that fails does not keep the others from being ended. Of one
/// at which the user interrupts it is said how far that has come.
///
/// # Errors
/// [`ApplyError`] with those that failed, or that were not begun or not done with when the user interrupted it.
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
    let pid = victim.client.pid;
    let interrupt = &environment.interrupt;
    // Taken hold of now: once it has ended another process may be given its pid.
    let held = victim
        .started
        .and_then(|started| environment.host.hold(pid, started));
    // In a fault its work has ended, and a server that waits for its clients to leave answers nothing.
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
    let is_off = daemon.loses_client(victim.server, pid, interrupt)?;
    if !is_off && !interrupt.is_asked() {
        return Err(Cause::StillClient);
    }
    Ok(match held {
        Some(_) if is_sent => Ended::AfterSignal,
        _ if !is_off => Ended::Unnoticed,
        // Of a process that cannot be seen nothing can be told.
        None if victim.started.is_none() => Ended::Work,
        Some(held) if !held.ends_within(A_MOMENT) => Ended::Work,
        _ => Ended::WorkAndProcess,
    })
}

/// Waits for the end of a process that was sent a signal; tells whether it has come. The user may interrupt that.
fn ends(held: &Held, interrupt: &Interrupt) -> bool {
    let begun = Instant::now();
    // In parts: the end of a process wakes who waits for it, and a signal to another thread does not.
    while !interrupt.is_asked() && begun.elapsed() < SIGNAL_LIMIT {
        if held.ends_within(A_MOMENT) {
            return true;
        }
    }
    held.has_ended()
}
