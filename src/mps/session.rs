//! A control session: commands on standard input, within a time limit that `host::run` enforces.

use std::time::{Duration, Instant};

use super::{Daemon, MpsError};
use crate::host::{Pid, RunError};

/// The time to retry while another session keeps the daemon busy.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// The time that a daemon may take to answer.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// The command that ends every session, because it always has an answer. A refused session can exit with status 0 and
/// without output (up to 38 % of tries while another one is open). The command also reads the setting back.
pub(super) const LAST_COMMAND: &str = "get_default_active_thread_percentage";

/// The control program's message if it reaches no daemon.
pub(super) const NO_DAEMON: &str = "Cannot find MPS control daemon process";

/// The first pause before a retry. It doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The output of one session.
#[derive(Debug)]
pub(super) struct Answer {
    asked: String,
    /// The output of the commands.
    pub(super) lines: Vec<String>,
    /// The daemon's default active thread percentage.
    pub(super) percentage: f64,
}

impl Answer {
    /// Returns the error for an answer that is none to the commands.
    pub(super) fn unexpected(&self) -> MpsError {
        MpsError::Unexpected {
            asked: self.asked.clone(),
            answer: self.lines.join("\n"),
        }
    }

    /// Reads what the control program has printed in a session.
    pub(super) fn read(asked: &str, stdout: &str, stderr: &str) -> Result<Self, Refusal> {
        if stderr.contains(NO_DAEMON) {
            return Err(Refusal::NoDaemon);
        }
        if stderr.contains("Cannot send command to MPS control daemon process")
            || stderr.contains("Cannot authenticate or connect to MPS control daemon process")
            || (stdout.is_empty() && stderr.is_empty())
        {
            return Err(Refusal::Busy);
        }
        let mut lines: Vec<String> = stdout.lines().map(str::to_owned).collect();
        // A pid has no decimal point, so it cannot be mistaken for this answer.
        let percentage = lines
            .pop()
            .filter(|last| is_percentage(last))
            .and_then(|last| last.trim().parse().ok());
        match percentage {
            Some(percentage) if stderr.is_empty() => Ok(Self {
                asked: asked.to_owned(),
                lines,
                percentage,
            }),
            _ => Err(Refusal::Unexpected(MpsError::Unexpected {
                asked: script(asked),
                answer: format!("{stdout}{stderr}"),
            })),
        }
    }
}

impl Daemon {
    /// Runs commands in one control session of at most `limit`. Retries for `patience` while another session keeps the
    /// daemon busy. Newer daemons queue sessions instead of refusing them.
    pub(super) fn session(
        &self,
        commands: &[String],
        patience: Duration,
        limit: Duration,
    ) -> Result<Answer, MpsError> {
        self.wait_for_user(patience + limit, |allowed| {
            self.session_within(commands, patience, limit, allowed)
        })
    }

    /// The same in at most `allowed` altogether, which the caller takes from the user's time.
    pub(super) fn session_within(
        &self,
        commands: &[String],
        patience: Duration,
        limit: Duration,
        allowed: Duration,
    ) -> Result<Answer, MpsError> {
        // Some of the time is left for the answer.
        let patience = if allowed < patience + limit {
            patience.min(allowed / 2)
        } else {
            patience
        };
        let asked = commands.join("\n");
        let script = script(&asked) + "\n";
        let start = Instant::now();
        let mut pause = FIRST_PAUSE;
        let changes: Vec<&str> = commands
            .iter()
            .map(String::as_str)
            .filter(|command| !is_query(command))
            .collect();
        // A queued session waits within its own limit. Its changes are carried out even after it was killed.
        let queues = self.program.queues_sessions;
        let limit = if queues && !changes.is_empty() {
            patience + limit
        } else {
            limit
        };
        let busy = |later| MpsError::Busy {
            pipe: self.pipe.clone(),
            waited: start.elapsed(),
            later,
        };
        let command = self.session_command()?;
        loop {
            let left = tenths(limit.min(allowed.saturating_sub(start.elapsed())));
            let output = match self.run(&command, &script, left) {
                Err(RunError::Late { .. }) if queues => return Err(busy(Some(changes.join("; ")))),
                other => other?,
            };
            match Answer::read(&asked, &output.stdout, &output.stderr) {
                Ok(answer) => return Ok(answer),
                Err(Refusal::NoDaemon) => return Err(MpsError::NoDaemon(self.pipe.clone())),
                Err(Refusal::Unexpected(error)) => return Err(error),
                Err(Refusal::Busy) if start.elapsed() + pause > patience => return Err(busy(None)),
                // The end of the other session cannot be waited for.
                Err(Refusal::Busy) => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Rounds a time to tenths of a second, for messages.
fn tenths(time: Duration) -> Duration {
    Duration::from_secs_f64((time.as_secs_f64() * 10.0).round() / 10.0)
}

/// True if a line is the answer to [`LAST_COMMAND`].
pub(super) fn is_percentage(line: &str) -> bool {
    line.contains('.') && line.trim().parse::<f64>().is_ok()
}

/// Parses the pid of a server in an answer.
pub(super) fn parse_pid(line: &str) -> Option<Pid> {
    line.trim().parse().ok().map(Pid)
}

/// True if a control command changes nothing (MPS guide, "Appendix: nvidia-cuda-mps-control").
pub fn is_query(command: &str) -> bool {
    let name = command.split_whitespace().next().unwrap_or_default();
    name.starts_with("get_") || ["", "ps", "lspart", "device_query", "help"].contains(&name)
}

#[derive(Debug)]
pub(super) enum Refusal {
    Busy,
    NoDaemon,
    Unexpected(MpsError),
}

/// Returns the commands of a session that asks for something.
fn script(asked: &str) -> String {
    match asked {
        "" => LAST_COMMAND.to_owned(),
        _ => format!("{asked}\n{LAST_COMMAND}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::ControlProgram;
    use super::*;
    use crate::host::MpsPrograms;

    /// Runs a session with a shell, which also reads commands from standard input.
    fn session(driver: &str, command: &str, patience: Duration) -> Result<Answer, MpsError> {
        let programs = MpsPrograms {
            control: "/bin/sh".into(),
            path: std::env::var_os("PATH").unwrap_or_default(),
            ..MpsPrograms::default()
        };
        let program = ControlProgram::of(driver);
        let daemon = Daemon::new(programs, program, "/".into(), "/".into());
        daemon.session(&[command.to_owned()], patience, Duration::from_millis(200))
    }

    #[test]
    fn a_queued_change_is_waited_for_and_not_ended_before_its_limit() {
        let waits = "sleep 1; echo 100.0; exit";
        let answer = session("615.10", waits, Duration::from_secs(60));
        assert!(answer.is_ok(), "{answer:?}");
    }

    #[test]
    fn a_daemon_that_queues_is_busy_when_time_is_up_and_may_still_make_the_change() {
        let error = |driver, command| {
            let ended = session(driver, command, Duration::ZERO);
            ended.unwrap_err().to_string()
        };
        let open = "the control daemon in / is busy: another control session is open, or it hangs: no answer within 0 s";
        assert_eq!(
            error("615.10", "sleep 600"),
            format!("{open}; it may still carry out: sleep 600")
        );
        assert_eq!(error("615.10", "get_it() { sleep 600; }; get_it"), open);
        assert_eq!(
            error("595.45.04", "sleep 600"),
            "/bin/sh did not answer within 200ms and was ended"
        );
    }

    #[test]
    fn a_session_without_an_answer_to_its_last_command_was_not_executed() {
        assert!(matches!(Answer::read("s", "", ""), Err(Refusal::Busy)));
        let busy = "Cannot send command to MPS control daemon process\n";
        assert!(matches!(Answer::read("s", "", busy), Err(Refusal::Busy)));
        assert!(matches!(
            Answer::read("s", "466\n", ""),
            Err(Refusal::Unexpected(_))
        ));
    }

    #[test]
    fn no_daemon_differs_from_a_busy_one() {
        let none = "Cannot find MPS control daemon process\n";
        assert!(matches!(
            Answer::read("s", "", none),
            Err(Refusal::NoDaemon)
        ));
    }

    #[test]
    fn the_last_line_is_the_percentage_and_the_rest_the_answer() {
        let answer = Answer::read("s", "466\nACTIVE\n33.3\n", "").unwrap();
        assert_eq!(answer.lines, ["466", "ACTIVE"]);
        assert!((answer.percentage - 33.3).abs() < 1e-9);
    }
}
