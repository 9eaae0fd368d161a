//! Termination of single clients of a device. It cannot be undone, and disrupts no other client.

use std::time::{Duration, Instant};

use rustix::process::Signal as Number;

use super::cause::Cause;
use super::context::{ApplyContext, Progress};
use super::error::{ApplyError, FailedStep};
use crate::host::{Interrupt, ProcessHandle};
use crate::mps::{ClientPolicy, Daemon, MpsError};
use crate::plan::{Kill, Signal, Victim};

/// The time limit for a process to exit after a signal.
const SIGNAL_LIMIT: Duration = Duration::from_secs(10);

/// The time in which a process that fails on CUDA's error exits after it has left the server's list.
const EXIT_GRACE_PERIOD: Duration = Duration::from_millis(200);

/// The pause between two questions to a server about a client whose process cannot be seen.
const CLIENT_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The outcome for a client, in words.
enum ClientOutcome {
    Done(String),
    /// The user interrupted it.
    Interrupted(String),
}

/// The outcome for a client that left before it was terminated.
const LEFT_BEFORE_MESSAGE: &str = "no longer a client; nothing was done";

/// Terminates clients one after another, and reports each once it has left its server's list. A failure does not keep
/// the others from being terminated.
///
/// # Errors
/// Names the clients that failed, and those that an interrupt spared.
pub(super) fn terminate_clients(
    kill: &Kill,
    context: &ApplyContext<'_>,
    progress: &dyn Progress,
) -> Result<(), ApplyError> {
    let environment = context.environment;
    let interrupt = &environment.interrupt;
    let _change = interrupt.begin_change();
    let daemon = daemon_of(kill, context);
    let begun = Instant::now();
    let mut error = ApplyError::default();
    for victim in &kill.victims {
        // Opened now: after its exit another process may get its pid.
        let opened = match victim.started {
            Some(started) => environment.host.open_process(victim.pid, started),
            None => Ok(None),
        };
        let ended = match opened {
            Err(cause) => Err(cause.into()),
            Ok(held) => {
                let client = EndingClient {
                    kill,
                    victim,
                    held,
                    daemon: &daemon,
                    interrupt,
                };
                if matches!(client.exits_by_itself(begun), Ok(true)) {
                    Ok(ClientOutcome::Done(LEFT_BEFORE_MESSAGE.to_owned()))
                } else if interrupt.is_interrupted() {
                    let step = format!("end the work of {}", victim.client);
                    error.not_begun.push(step);
                    continue;
                } else {
                    client.end()
                }
            }
        };
        match ended {
            Ok(ended) => {
                // The plan says who it is.
                let (device, pid) = (&victim.client.device, victim.pid);
                let (ClientOutcome::Done(text) | ClientOutcome::Interrupted(text)) = &ended;
                progress.note(&format!("{device}: pid {pid}: {text}"));
                error.interrupted |= matches!(ended, ClientOutcome::Interrupted(_));
            }
            Err(cause) => {
                let failure = FailedStep::new(format!("device {}", victim.client), cause);
                error.failures.push(failure);
            }
        }
    }
    error.interrupted |= !error.not_begun.is_empty();
    if error.interrupted || !error.failures.is_empty() {
        return Err(error);
    }
    Ok(())
}

/// The daemon whose clients are terminated.
fn daemon_of(kill: &Kill, context: &ApplyContext<'_>) -> Daemon {
    let logs = context.environment.logs_of(kill.run_dir.path());
    Daemon::new(
        context.programs.clone(),
        context.node.control_program(),
        kill.run_dir.pipe_dir(&kill.uuid),
        logs.unwrap_or_default().join(&kill.uuid),
    )
}

/// A client that is being terminated.
struct EndingClient<'a> {
    kill: &'a Kill,
    victim: &'a Victim,
    /// Its process, if that can be seen.
    held: Option<ProcessHandle>,
    daemon: &'a Daemon,
    interrupt: &'a Interrupt,
}

impl EndingClient<'_> {
    /// Waits for the client to exit by itself, as long as the plan allows it; returns false on timeout or interrupt.
    fn exits_by_itself(&self, begun: Instant) -> Result<bool, MpsError> {
        let seconds = match self.kill.patience {
            ClientPolicy::Idle | ClientPolicy::Force(0) => return Ok(false),
            ClientPolicy::Force(seconds) => seconds,
        };
        let remaining = Duration::from_secs(seconds.into()).saturating_sub(begun.elapsed());
        if let Some(held) = &self.held {
            return Ok(held.wait_for_exit_or_interrupt(remaining, self.interrupt));
        }
        let begun = Instant::now();
        while self.is_client()? {
            if begun.elapsed() >= remaining
                || !self.interrupt.sleep_uninterrupted(CLIENT_POLL_INTERVAL)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_client(&self) -> Result<bool, MpsError> {
        self.daemon.has_client(self.victim.server, self.victim.pid)
    }

    fn end(&self) -> Result<ClientOutcome, Cause> {
        let (server, pid) = (self.victim.server, self.victim.pid);
        // A fault has terminated it already, and a server that waits for its clients to leave does not answer.
        if !self.kill.has_fault
            && let Err(error) = self.daemon.terminate_client(server, pid)
        {
            return match self.is_client() {
                Ok(false) => Ok(ClientOutcome::Done(LEFT_BEFORE_MESSAGE.to_owned())),
                _ => Err(error.into()),
            };
        }
        let mut sent = None;
        if let (Some(signal), Some(held)) = (self.kill.signal, &self.held) {
            let name = signal.name();
            if self.interrupt.is_interrupted() && !held.wait_for_exit(EXIT_GRACE_PERIOD) {
                let text = "GPU work ended; process still running, because no signal was sent";
                return Ok(ClientOutcome::Interrupted(text.to_owned()));
            }
            match held.send_signal(signal_number(signal)) {
                Err(_) if held.has_ended() => {}
                Err(error) => {
                    return Err(Cause::Other(format!(
                        "GPU work ended, but {name} could not be sent to the process: {error}"
                    )));
                }
                Ok(()) if held.wait_for_exit_or_interrupt(SIGNAL_LIMIT, self.interrupt) => {
                    sent = Some(name);
                }
                Ok(()) if self.interrupt.is_interrupted() => {
                    return Ok(ClientOutcome::Interrupted(format!(
                        "GPU work ended; process sent {name} and still running when this command was interrupted"
                    )));
                }
                Ok(()) => {
                    return Err(Cause::StillThere {
                        signal: name,
                        after: SIGNAL_LIMIT,
                    });
                }
            }
        }
        let is_off = self
            .daemon
            .wait_for_client_exit(server, pid, self.interrupt)?;
        if !is_off && !self.interrupt.is_interrupted() {
            return Err(Cause::StillClient);
        }
        Ok(self.describe_outcome(sent, is_off))
    }

    fn still_runs(&self) -> bool {
        match &self.held {
            Some(held) => !held.wait_for_exit(EXIT_GRACE_PERIOD),
            // The process is not visible.
            None => self.victim.started.is_none(),
        }
    }

    /// The outcome for a client that the server has terminated, and that was sent this signal.
    fn describe_outcome(&self, sent: Option<&str>, is_off: bool) -> ClientOutcome {
        if let Some(name) = sent {
            ClientOutcome::Done(format!("GPU work ended, process exited after {name}"))
        } else if !is_off {
            ClientOutcome::Interrupted(
                "GPU work ended; not waited for the process to exit, no signal sent".to_owned(),
            )
        } else if self.still_runs() {
            ClientOutcome::Done(
                "GPU work ended; its CUDA calls now fail with error 810; no signal sent".to_owned(),
            )
        } else {
            ClientOutcome::Done("GPU work ended, process exited".to_owned())
        }
    }
}

fn signal_number(signal: Signal) -> Number {
    match signal {
        Signal::Term => Number::TERM,
        Signal::Kill => Number::KILL,
    }
}
