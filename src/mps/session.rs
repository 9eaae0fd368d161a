use std::time::{Duration, Instant};

use super::log::is_question;
use super::{Daemon, MpsError};
use crate::host::RunError;

/// The command that ends every session, because it must answer: a session refused in silence (exit
/// 0, no output; up to 38 % of tries while another one is open) has no answer to it. It also reads
/// the setting back.
pub(super) const SENTINEL: &str = "get_default_active_thread_percentage";

/// What the control program says where no daemon can be reached.
pub(super) const NO_DAEMON: &str = "Cannot find MPS control daemon process";

/// The first pause before another try; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// What came of one session.
#[derive(Debug)]
pub(super) struct Answer {
    /// The commands' output, line by line.
    pub(super) lines: Vec<String>,
    /// The daemon's default active thread percentage.
    pub(super) percentage: f64,
}

impl Daemon {
    /// Runs commands in one control session that may take up to `limit`, trying again for as long as
    /// `patience` while another session keeps the daemon busy. Newer daemons queue sessions instead of refusing them.
    pub(super) fn session(
        &self,
        commands: &[&str],
        patience: Duration,
        limit: Duration,
    ) -> Result<Answer, MpsError> {
        let mut script = commands.join("\n");
        if !commands.is_empty() {
            script.push('\n');
        }
        script.push_str(SENTINEL);
        script.push('\n');
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        let changes: Vec<&str> = commands
            .iter()
            .copied()
            .filter(|command| !is_question(command))
            .collect();
        // A queued session waits for its turn within its own limit: its changes are carried out also after its end.
        let queues = self.program.queues_sessions;
        let limit = if queues && !changes.is_empty() {
            patience + limit
        } else {
            limit
        };
        let busy = |later| MpsError::Busy {
            pipe: self.pipe.clone(),
            waited: begun.elapsed(),
            later,
        };
        loop {
            let output = match self.run(self.control(), &script, limit) {
                Err(RunError::Late { .. }) if queues => return Err(busy(Some(changes.join("; ")))),
                other => other?,
            };
            match read(&script, &output.stdout, &output.stderr) {
                Ok(answer) => return Ok(answer),
                Err(Refusal::NoDaemon) => return Err(MpsError::NoDaemon(self.pipe.clone())),
                Err(Refusal::Strange(error)) => return Err(error),
                Err(Refusal::Busy) if begun.elapsed() + pause > patience => return Err(busy(None)),
                // Nothing announces the other session's end.
                Err(Refusal::Busy) => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Whether a line is the answer to [`SENTINEL`].
pub(super) fn is_percentage(line: &str) -> bool {
    line.contains('.') && line.trim().parse::<f64>().is_ok()
}

#[derive(Debug)]
enum Refusal {
    Busy,
    NoDaemon,
    Strange(MpsError),
}

fn read(script: &str, stdout: &str, stderr: &str) -> Result<Answer, Refusal> {
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
    // A pid has no decimal point: the sentinel's answer cannot be taken for one.
    let percentage = lines
        .pop()
        .filter(|last| is_percentage(last))
        .and_then(|last| last.trim().parse().ok());
    match percentage {
        Some(percentage) if stderr.is_empty() => Ok(Answer { lines, percentage }),
        _ => Err(Refusal::Strange(MpsError::Strange {
            asked: script.trim_end().to_owned(),
            answer: format!("{stdout}{stderr}"),
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::super::ControlProgram;
    use super::*;
    use crate::host::MpsPrograms;

    /// What a session with a shell comes to: that takes commands on its standard input too.
    fn session(driver: &str, command: &str, patience: Duration) -> Result<Answer, MpsError> {
        let programs = MpsPrograms {
            control: "/bin/sh".into(),
            path: std::env::var_os("PATH").unwrap_or_default(),
            ..MpsPrograms::default()
        };
        let program = ControlProgram::of(driver);
        let daemon = Daemon::new(programs, program, "/".into(), "/".into());
        daemon.session(&[command], patience, Duration::from_millis(200))
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
        assert!(matches!(read("s", "", ""), Err(Refusal::Busy)));
        let busy = "Cannot send command to MPS control daemon process\n";
        assert!(matches!(read("s", "", busy), Err(Refusal::Busy)));
        assert!(matches!(read("s", "466\n", ""), Err(Refusal::Strange(_))));
    }

    #[test]
    fn no_daemon_is_told_from_a_busy_one() {
        let none = "Cannot find MPS control daemon process\n";
        assert!(matches!(read("s", "", none), Err(Refusal::NoDaemon)));
    }

    #[test]
    fn the_last_line_is_the_percentage_and_the_rest_the_answer() {
        let answer = read("s", "466\nACTIVE\n33.3\n", "").unwrap();
        assert_eq!(answer.lines, ["466", "ACTIVE"]);
        assert!((answer.percentage - 33.3).abs() < 1e-9);
    }
}
