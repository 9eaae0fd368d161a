use std::time::{Duration, Instant};

use super::{Daemon, MpsError};

/// The command that ends every session, because it must answer: a session refused in silence (exit
/// 0, no output; up to 38 % of tries while another one is open) has no answer to it. It also reads
/// the setting back.
const SENTINEL: &str = "get_default_active_thread_percentage";

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
    /// `patience` while another session keeps the daemon busy.
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
        loop {
            let output = self.run(self.control(), &script, limit)?;
            match read(&script, &output.stdout, &output.stderr) {
                Ok(answer) => return Ok(answer),
                Err(Refusal::NoDaemon) => return Err(MpsError::NoDaemon(self.pipe.clone())),
                Err(Refusal::Strange(error)) => return Err(error),
                Err(Refusal::Busy) if begun.elapsed() + pause > patience => {
                    return Err(MpsError::Busy {
                        pipe: self.pipe.clone(),
                        waited: begun.elapsed(),
                    });
                }
                // Nothing announces the other session's end.
                Err(Refusal::Busy) => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
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
        .filter(|last| last.contains('.'))
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
    use super::*;

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
