//! The servers and clients that a daemon reports.

use std::collections::VecDeque;
use std::time::Duration;

use super::log::{LOG_END, logged_fault, logged_limit};
use super::session::{ANSWER_LIMIT, Answer, LAST_COMMAND, PATIENCE, is_percentage, parse_pid};
use super::setting_command::queries;
use super::{Daemon, LogFile, MpsError};
use crate::host::Pid;
use crate::settings::Reported;

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
    /// `None` for a server that started during the session.
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

impl Daemon {
    /// Asks the daemon in one session for its servers, and for the state and clients of its child processes
    /// `children`. With `with_defaults` also asks what it gives to new servers.
    pub fn query(
        &self,
        children: &[Pid],
        with_defaults: bool,
        patience: Duration,
        limit: Duration,
    ) -> Result<DaemonStatus, MpsError> {
        self.wait_for_user(patience + limit, |allowed| {
            self.query_within(children, with_defaults, (patience, limit), allowed)
        })
    }

    /// The same in at most `allowed` altogether, which the caller takes from the user's time.
    pub(super) fn query_within(
        &self,
        children: &[Pid],
        with_defaults: bool,
        (patience, limit): (Duration, Duration),
        allowed: Duration,
    ) -> Result<DaemonStatus, MpsError> {
        let mut commands = if with_defaults { queries() } else { Vec::new() };
        commands.push("get_server_list".to_owned());
        for child in children {
            // The answer separates the lists of pids.
            commands.push(if self.program.has_server_status {
                format!("get_server_status {child}")
            } else {
                LAST_COMMAND.to_owned()
            });
            commands.push(format!("get_client_list {child}"));
        }
        let answer = self.session_within(&commands, patience, limit, allowed)?;
        let read = DaemonStatus::read(&answer, children, with_defaults);
        let mut status = read.ok_or_else(|| answer.unexpected())?;
        self.add_logged(&mut status);
        Ok(status)
    }

    /// Asks the daemon for the settings that it gives to new servers.
    pub fn defaults(&self) -> Result<Reported, MpsError> {
        let answer = self.session(&queries(), PATIENCE, ANSWER_LIMIT)?;
        let mut lines = answer.lines.iter().map(String::as_str).collect();
        Reported::read(&mut lines, answer.percentage)
            .filter(|_| lines.is_empty())
            .ok_or_else(|| answer.unexpected())
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
            if let (Some(defaults), Some(bytes)) =
                (limited.as_deref_mut(), logged_limit(&log, server.pid))
            {
                defaults.refine(bytes);
            }
            if wants_fault && server.state.is_some() && logged_fault(&log, server.pid) {
                server.state = Some(ServerState::Fault);
            }
        }
    }
}

impl DaemonStatus {
    /// Reads the answers to the commands of [`Daemon::query`].
    fn read(answer: &Answer, children: &[Pid], with_defaults: bool) -> Option<Self> {
        let mut lines: VecDeque<&str> = answer.lines.iter().map(String::as_str).collect();
        let defaults = if with_defaults {
            Some(Reported::read(&mut lines, answer.percentage)?)
        } else {
            None
        };
        Some(Self {
            servers: read(lines, children)?,
            defaults,
        })
    }

    /// Reads what a control program has printed, for tests of any output.
    pub fn of_output(output: &str, children: &[Pid], with_defaults: bool) -> Option<Self> {
        let answer = Answer::read("", output, "").ok()?;
        Self::read(&answer, children, with_defaults)
    }
}

/// Splits the answers, which nothing separates: pids up to the first state, then that server's clients up to the next
/// state.
fn read(mut lines: VecDeque<&str>, children: &[Pid]) -> Option<Vec<ServerStatus>> {
    let mut servers: Vec<ServerStatus> = pids(&mut lines)
        .into_iter()
        .map(|pid| ServerStatus {
            pid,
            state: None,
            clients: Vec::new(),
        })
        .collect();
    for child in children {
        // A server that exits between the two commands has this answer to the second one.
        let gone = format!("Server {child} not found");
        let state = match lines.pop_front()? {
            "INITIALIZING" => Some(ServerState::Initializing),
            "ACTIVE" => Some(ServerState::Active),
            "FAULT" => Some(ServerState::Fault),
            // Without get_server_status: the daemon answers nothing while a server starts, and faults are in the log.
            answer if is_percentage(answer) => Some(ServerState::Active),
            answer if answer == gone => None,
            _ => return None,
        };
        // The daemon says 0 for a pid that it cannot see.
        let clients = pids(&mut lines).into_iter();
        let clients = clients
            .map(|pid| Some(pid).filter(|pid| pid.0 != 0))
            .collect();
        if lines.front().is_some_and(|line| *line == gone) {
            lines.pop_front();
        }
        if let Some(server) = servers.iter_mut().find(|server| server.pid == *child) {
            server.state = state;
            server.clients = clients;
        }
    }
    lines.is_empty().then_some(servers)
}

fn pids(lines: &mut VecDeque<&str>) -> Vec<Pid> {
    let mut pids = Vec::new();
    while let Some(pid) = lines.front().copied().and_then(parse_pid) {
        pids.push(pid);
        lines.pop_front();
    }
    pids
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str, children: &[u32]) -> Option<Vec<ServerStatus>> {
        let children: Vec<Pid> = children.iter().copied().map(Pid).collect();
        read(text.lines().collect(), &children)
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
            read_text("466\nACTIVE\n", &[466]),
            Some(vec![server(466, active, &[])])
        );
        assert_eq!(
            read_text("466\nACTIVE\n582\n581\n", &[466]),
            Some(vec![server(466, active, &[582, 581])])
        );
        assert_eq!(
            read_text("1\n2\nACTIVE\n5\nFAULT\n6\n7\n", &[1, 2]),
            Some(vec![
                server(1, active, &[5]),
                server(2, Some(ServerState::Fault), &[6, 7])
            ])
        );
    }

    #[test]
    fn a_server_that_came_or_went_meanwhile_is_no_mistake() {
        assert_eq!(read_text("466\n", &[]), Some(vec![server(466, None, &[])]));
        let gone = "Server 9 not found\nServer 9 not found\n";
        assert_eq!(read_text(gone, &[9]), Some(vec![]));
        let went = "9\nACTIVE\nServer 9 not found\n";
        assert_eq!(
            read_text(went, &[9]),
            Some(vec![server(9, Some(ServerState::Active), &[])])
        );
        let one_gone = "8\nACTIVE\nServer 9 not found\nServer 9 not found\n";
        assert_eq!(
            read_text(one_gone, &[8, 9]),
            Some(vec![server(8, Some(ServerState::Active), &[])])
        );
    }

    #[test]
    fn a_program_without_get_server_status_lists_servers_and_clients_too() {
        assert_eq!(
            read_text("466\n100.0\n582\n581\n", &[466]),
            Some(vec![server(466, Some(ServerState::Active), &[582, 581])])
        );
        assert_eq!(read_text("100.0\nServer 9 not found\n", &[9]), Some(vec![]));
    }

    #[test]
    fn an_unknown_answer_is_not_guessed_at() {
        assert_eq!(read_text("466\nDROWSY\n", &[466]), None);
        assert_eq!(read_text("466\nACTIVE\n5\nand more\n", &[466]), None);
        assert_eq!(read_text("466\n", &[466]), None);
    }
}
