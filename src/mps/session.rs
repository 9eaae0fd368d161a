//! A control session: commands on standard input, within a time limit that `host::run` enforces; and the servers and
//! clients that the daemon reports.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::configure::default_queries;
use super::log::{LOG_END, log_shows_fault, logged_memory_limit};
use super::{Daemon, LogFile, MpsError};
use crate::host::{Pid, RunError};
use crate::settings::Reported;

/// The time to retry while another session keeps the daemon busy.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that a daemon may take to answer.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

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
pub(super) struct SessionAnswer {
    asked: String,
    /// The output of the commands.
    pub(super) lines: Vec<String>,
    /// The daemon's default active thread percentage.
    pub(super) percentage: f64,
}

impl SessionAnswer {
    /// Returns the error for an answer that is none to the commands.
    pub(super) fn unexpected_error(&self) -> MpsError {
        MpsError::Unexpected {
            asked: self.asked.clone(),
            answer: self.lines.join("\n"),
        }
    }

    /// Reads what the control program has printed in a session.
    pub(super) fn parse(asked: &str, stdout: &str, stderr: &str) -> Result<Self, SessionRefusal> {
        if stderr.contains(NO_DAEMON) {
            return Err(SessionRefusal::NoDaemon);
        }
        if stderr.contains("Cannot send command to MPS control daemon process")
            || stderr.contains("Cannot authenticate or connect to MPS control daemon process")
            || (stdout.is_empty() && stderr.is_empty())
        {
            return Err(SessionRefusal::Busy);
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
            _ => Err(SessionRefusal::Unexpected(MpsError::Unexpected {
                asked: session_script(asked),
                answer: format!("{stdout}{stderr}"),
            })),
        }
    }
}

impl Daemon {
    /// Runs commands in one control session of at most `limit`. Retries for `patience` while another session keeps the
    /// daemon busy. Newer daemons queue sessions instead of refusing them.
    pub(super) fn run_commands(
        &self,
        commands: &[String],
        patience: Duration,
        limit: Duration,
    ) -> Result<SessionAnswer, MpsError> {
        let asked = commands.join("\n");
        let script = session_script(&asked) + "\n";
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
        loop {
            let output = match self.run_session(&script, limit) {
                Err(RunError::Late { .. }) if queues => {
                    return Err(self.busy_error(start, Some(changes.join("; "))));
                }
                other => other?,
            };
            match SessionAnswer::parse(&asked, &output.stdout, &output.stderr) {
                Ok(answer) => return Ok(answer),
                Err(SessionRefusal::NoDaemon) => return Err(MpsError::NoDaemon(self.pipe.clone())),
                Err(SessionRefusal::Unexpected(error)) => return Err(error),
                Err(SessionRefusal::Busy) if start.elapsed() + pause > patience => {
                    return Err(self.busy_error(start, None));
                }
                // The end of the other session cannot be waited for.
                Err(SessionRefusal::Busy) => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn busy_error(&self, since: Instant, later: Option<String>) -> MpsError {
        MpsError::Busy {
            pipe: self.pipe.clone(),
            waited: since.elapsed(),
            later,
        }
    }

    /// Asks the daemon in one session for its servers, and for the state and clients of its child processes
    /// `children`. With `with_defaults` also asks what it gives to new servers.
    pub fn query_status(
        &self,
        children: &[Pid],
        with_defaults: bool,
        patience: Duration,
        limit: Duration,
    ) -> Result<DaemonStatus, MpsError> {
        let mut commands = if with_defaults {
            default_queries(self.devices)
        } else {
            Vec::new()
        };
        commands.push("get_server_list".to_owned());
        let has_status = self.program.has_server_status;
        for child in children {
            // The answer separates the lists of pids.
            let status = if has_status {
                format!("get_server_status {child}")
            } else {
                LAST_COMMAND.to_owned()
            };
            commands.push(status.clone());
            commands.push(format!("get_client_list {child}"));
            // Clients come and go, and faults happen, between two commands.
            commands.extend(has_status.then_some(status));
        }
        let answer = self.run_commands(&commands, patience, limit)?;
        let defaults_of = with_defaults.then_some(self.devices);
        let read = DaemonStatus::parse(&answer, children, has_status, defaults_of);
        let mut status = read.ok_or_else(|| answer.unexpected_error())?;
        self.add_logged(&mut status);
        Ok(status)
    }

    /// Asks the daemon for the settings that it gives to new servers.
    pub fn query_defaults(&self) -> Result<Reported, MpsError> {
        let answer =
            self.run_commands(&default_queries(self.devices), BUSY_TIMEOUT, ANSWER_TIMEOUT)?;
        let mut lines = answer.lines.iter().map(String::as_str).collect();
        match Reported::parse_answers(self.devices, &mut lines, answer.percentage) {
            Some(reported) if lines.is_empty() => Ok(reported),
            _ => Err(answer.unexpected_error()),
        }
    }

    /// Returns the UUIDs of the GPUs that the daemon has; `None` from a driver before 580, whose daemons cannot tell.
    pub fn query_gpus(&self) -> Result<Option<Vec<String>>, MpsError> {
        let answer =
            self.run_commands(&["device_query".to_owned()], BUSY_TIMEOUT, ANSWER_TIMEOUT)?;
        let uuids: Vec<String> = answer
            .lines
            .iter()
            .flat_map(|line| line.split_whitespace())
            .filter(|word| word.starts_with("GPU-"))
            .map(str::to_owned)
            .collect();
        Ok((!uuids.is_empty()).then_some(uuids))
    }

    /// Adds what only server.log has: exact memory limits, and faults if the control program lacks
    /// `get_server_status`.
    fn add_logged(&self, status: &mut DaemonStatus) {
        let defaults = status.defaults.as_mut();
        let mut limited = defaults.filter(|defaults| defaults.memory_limit().is_some());
        let wants_fault = !self.program.has_server_status;
        if status.servers.is_empty() || limited.is_none() && !wants_fault {
            return;
        }
        let log = self.log_end(LogFile::Server, LOG_END);
        for server in &mut status.servers {
            if let (Some(defaults), Some(bytes)) = (
                limited.as_deref_mut(),
                logged_memory_limit(&log, server.pid),
            ) {
                defaults.refine_memory_limit(bytes);
            }
            if wants_fault && server.state.is_some() && log_shows_fault(&log, server.pid) {
                server.state = Some(ServerState::Fault);
            }
        }
    }
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
pub(super) enum SessionRefusal {
    Busy,
    NoDaemon,
    Unexpected(MpsError),
}

/// Returns the commands of a session that asks for something.
fn session_script(asked: &str) -> String {
    match asked {
        "" => LAST_COMMAND.to_owned(),
        _ => format!("{asked}\n{LAST_COMMAND}"),
    }
}

/// The state of a daemon, as one control session reports it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DaemonStatus {
    /// The servers: at most one, except while one user's server replaces another's.
    pub servers: Vec<ServerStatus>,
    /// The defaults for new servers, if they were queried.
    pub defaults: Option<Reported>,
}

/// An MPS server, as its daemon reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStatus {
    pub pid: Pid,
    /// `None` for a server that started, ended or changed during the session.
    pub state: Option<ServerState>,
    /// The pids of its clients; `None` for one in a pid namespace that the daemon cannot see.
    pub clients: Vec<Option<Pid>>,
}

/// The state of a server, as the MPS guide names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// The server starts: clients wait.
    Initializing,
    /// The server admits clients.
    Active,
    /// A fatal GPU fault happened: new clients are refused with error 807 until all clients have exited.
    Fault,
}

impl DaemonStatus {
    /// Reads the answers to the commands of [`Daemon::query_status`], with the defaults of so many devices if they were queried.
    fn parse(
        answer: &SessionAnswer,
        children: &[Pid],
        has_status: bool,
        defaults_of: Option<usize>,
    ) -> Option<Self> {
        let mut lines: VecDeque<&str> = answer.lines.iter().map(String::as_str).collect();
        let defaults = match defaults_of {
            Some(devices) => Some(Reported::parse_answers(
                devices,
                &mut lines,
                answer.percentage,
            )?),
            None => None,
        };
        Some(Self {
            servers: parse_servers(lines, children, has_status)?,
            defaults,
        })
    }

    /// Reads what a control program has printed, for tests of any output.
    pub fn of_output(output: &str, children: &[Pid], with_defaults: bool) -> Option<Self> {
        let answer = SessionAnswer::parse("", output, "").ok()?;
        Self::parse(&answer, children, true, with_defaults.then_some(1))
    }
}

/// Splits the answers, which nothing separates: pids up to the first state, then that server's clients up to the next
/// state, which is that server's again if it `has_status`.
fn parse_servers(
    mut lines: VecDeque<&str>,
    children: &[Pid],
    has_status: bool,
) -> Option<Vec<ServerStatus>> {
    let mut servers: Vec<ServerStatus> = take_pids(&mut lines)
        .into_iter()
        .map(|pid| ServerStatus {
            pid,
            state: None,
            clients: Vec::new(),
        })
        .collect();
    for child in children {
        // The answer about a server that has exited.
        let gone = format!("Server {child} not found");
        let state = match lines.pop_front()? {
            line if line == gone => None,
            line => Some(parse_state(line)?),
        };
        // The daemon says 0 for a pid that it cannot see.
        let clients = take_pids(&mut lines)
            .into_iter()
            .map(|pid| Some(pid).filter(|pid| pid.0 != 0))
            .collect();
        let mut after = state;
        if lines.front().is_some_and(|line| *line == gone) {
            after = None;
            while lines.front().is_some_and(|line| *line == gone) {
                lines.pop_front();
            }
        } else if has_status {
            after = Some(parse_state(lines.pop_front()?)?);
        }
        if let Some(server) = servers.iter_mut().find(|server| server.pid == *child) {
            server.state = if after == state { state } else { None };
            server.clients = clients;
        }
    }
    lines.is_empty().then_some(servers)
}

/// Parses the state of a server.
fn parse_state(line: &str) -> Option<ServerState> {
    match line {
        "INITIALIZING" => Some(ServerState::Initializing),
        "ACTIVE" => Some(ServerState::Active),
        "FAULT" => Some(ServerState::Fault),
        // Without get_server_status: the daemon answers nothing while a server starts, and faults are in the log.
        line if is_percentage(line) => Some(ServerState::Active),
        _ => None,
    }
}

fn take_pids(lines: &mut VecDeque<&str>) -> Vec<Pid> {
    let mut pids = Vec::new();
    while let Some(pid) = lines.front().copied().and_then(parse_pid) {
        pids.push(pid);
        lines.pop_front();
    }
    pids
}

#[cfg(test)]
mod tests {
    use super::super::ControlProgram;
    use super::*;
    use crate::host::MpsPrograms;

    /// Runs a session with a shell, which also reads commands from standard input.
    fn session(driver: &str, command: &str, patience: Duration) -> Result<SessionAnswer, MpsError> {
        let programs = MpsPrograms {
            control: "/bin/sh".into(),
            path: std::env::var_os("PATH").unwrap_or_default(),
            ..MpsPrograms::default()
        };
        let program = ControlProgram::for_driver(driver);
        let daemon = Daemon::new(programs, program, "/".into(), "/".into());
        daemon.run_commands(&[command.to_owned()], patience, Duration::from_millis(200))
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
        assert!(matches!(
            SessionAnswer::parse("s", "", ""),
            Err(SessionRefusal::Busy)
        ));
        let busy = "Cannot send command to MPS control daemon process\n";
        assert!(matches!(
            SessionAnswer::parse("s", "", busy),
            Err(SessionRefusal::Busy)
        ));
        assert!(matches!(
            SessionAnswer::parse("s", "466\n", ""),
            Err(SessionRefusal::Unexpected(_))
        ));
    }

    #[test]
    fn no_daemon_differs_from_a_busy_one() {
        let none = "Cannot find MPS control daemon process\n";
        assert!(matches!(
            SessionAnswer::parse("s", "", none),
            Err(SessionRefusal::NoDaemon)
        ));
    }

    #[test]
    fn the_last_line_is_the_percentage_and_the_rest_the_answer() {
        let answer = SessionAnswer::parse("s", "466\nACTIVE\n33.3\n", "").unwrap();
        assert_eq!(answer.lines, ["466", "ACTIVE"]);
        assert!((answer.percentage - 33.3).abs() < 1e-9);
    }

    fn read_text(text: &str, children: &[u32]) -> Option<Vec<ServerStatus>> {
        let children: Vec<Pid> = children.iter().copied().map(Pid).collect();
        parse_servers(text.lines().collect(), &children, true)
    }

    fn server(pid: u32, state: Option<ServerState>, clients: &[u32]) -> ServerStatus {
        ServerStatus {
            pid: Pid(pid),
            state,
            clients: clients.iter().copied().map(Pid).map(Some).collect(),
        }
    }

    #[test]
    fn servers_states_and_clients_are_separated() {
        let active = Some(ServerState::Active);
        assert_eq!(read_text("", &[]), Some(vec![]));
        assert_eq!(
            read_text("466\nACTIVE\nACTIVE\n", &[466]),
            Some(vec![server(466, active, &[])])
        );
        assert_eq!(
            read_text("466\nACTIVE\n582\n581\nACTIVE\n", &[466]),
            Some(vec![server(466, active, &[582, 581])])
        );
        assert_eq!(
            read_text("1\n2\nACTIVE\n5\nACTIVE\nFAULT\n6\n7\nFAULT\n", &[1, 2]),
            Some(vec![
                server(1, active, &[5]),
                server(2, Some(ServerState::Fault), &[6, 7])
            ])
        );
    }

    #[test]
    fn a_server_that_came_or_went_meanwhile_is_no_mistake() {
        assert_eq!(read_text("466\n", &[]), Some(vec![server(466, None, &[])]));
        let gone = "Server 9 not found\n".repeat(3);
        assert_eq!(read_text(&gone, &[9]), Some(vec![]));
        for went in [
            "9\nACTIVE\nServer 9 not found\nServer 9 not found\n",
            "9\nACTIVE\nServer 9 not found\n",
        ] {
            assert_eq!(read_text(went, &[9]), Some(vec![server(9, None, &[])]));
        }
        let one_gone = format!("8\nACTIVE\nACTIVE\n{gone}");
        assert_eq!(
            read_text(&one_gone, &[8, 9]),
            Some(vec![server(8, Some(ServerState::Active), &[])])
        );
    }

    /// Its state and its clients are not of one moment then.
    #[test]
    fn a_server_that_changed_meanwhile_has_no_state() {
        assert_eq!(
            read_text("466\nACTIVE\n582\nFAULT\n", &[466]),
            Some(vec![server(466, None, &[582])])
        );
    }

    #[test]
    fn a_program_without_get_server_status_lists_servers_and_clients_too() {
        let read_text =
            |text: &str, child| parse_servers(text.lines().collect(), &[Pid(child)], false);
        assert_eq!(
            read_text("466\n100.0\n582\n581\n", 466),
            Some(vec![server(466, Some(ServerState::Active), &[582, 581])])
        );
        assert_eq!(read_text("100.0\nServer 9 not found\n", 9), Some(vec![]));
    }

    #[test]
    fn an_unknown_answer_is_not_guessed_at() {
        assert_eq!(read_text("466\nDROWSY\nDROWSY\n", &[466]), None);
        assert_eq!(read_text("466\nACTIVE\n5\nand more\n", &[466]), None);
        assert_eq!(read_text("466\nACTIVE\n5\n", &[466]), None);
        assert_eq!(read_text("466\n", &[466]), None);
    }
}
