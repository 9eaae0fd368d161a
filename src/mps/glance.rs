use std::collections::VecDeque;
use std::time::Duration;

use super::daemon::parse_pid;
use super::log::{logged_fault, logged_limit};
use super::session::{SENTINEL, is_percentage};
use super::{Daemon, Defaults, LogFile, MpsError};
use crate::host::Pid;

/// How much of server.log is looked through.
pub(super) const ENOUGH_LOG: u64 = 1 << 20;

/// What one control session tells of a daemon.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Glance {
    /// Its servers: at most one, but for the moment when one user's follows another's.
    pub servers: Vec<ServerSeen>,
    /// What it gives to servers.
    pub defaults: Option<Defaults>,
}

/// One MPS server as its daemon reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSeen {
    /// Its process id.
    pub pid: Pid,
    /// What it is doing; `None` for one that came up while we looked.
    pub state: Option<ServerState>,
    /// Its clients' process ids; 0 stands for one in a pid namespace the daemon cannot see.
    pub clients: Vec<Pid>,
}

/// A server's state in the words of the MPS guide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// Starting: clients wait.
    Initializing,
    /// Serving.
    Active,
    /// After a fatal GPU fault, until every client has gone: new ones are refused with error 807.
    Fault,
}

impl Daemon {
    /// Asks the daemon in one session for its servers, and for state and clients of those that
    /// `/proc` shows as its children; and for what it gives to servers, if that is of interest.
    ///
    /// # Errors
    /// [`MpsError::Busy`] when somebody else's session outlasts `patience`, a late answer, and others.
    pub fn glance(
        &self,
        children: &[Pid],
        with_defaults: bool,
        patience: Duration,
        limit: Duration,
    ) -> Result<Glance, MpsError> {
        let mut commands = Vec::new();
        if with_defaults {
            commands = Defaults::questions();
        }
        commands.push("get_server_list".to_owned());
        for child in children {
            // What stands between the lists of pids and tells them apart.
            commands.push(if self.program.has_server_status {
                format!("get_server_status {child}")
            } else {
                SENTINEL.to_owned()
            });
            commands.push(format!("get_client_list {child}"));
        }
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        let answer = self.session(&commands, patience, limit)?;
        let strange = || MpsError::Strange {
            asked: commands.join("\n"),
            answer: answer.lines.join("\n"),
        };
        let mut lines: VecDeque<&str> = answer.lines.iter().map(String::as_str).collect();
        let mut defaults = None;
        if with_defaults {
            let read = Defaults::read(&mut lines, answer.percentage);
            defaults = Some(read.ok_or_else(strange)?);
        }
        let mut glance = Glance {
            servers: read(lines, children).ok_or_else(strange)?,
            defaults,
        };
        self.refine(&mut glance);
        Ok(glance)
    }
}

impl Daemon {
    /// Adds what only the log of servers tells: exact memory limits, and faults where the control program has no word
    /// for them.
    fn refine(&self, glance: &mut Glance) {
        let limit = glance.defaults.as_mut();
        let mut limit = limit.and_then(|defaults| defaults.pinned_memory_limit.as_mut());
        let wants_fault = !self.program.has_server_status;
        if glance.servers.is_empty() || limit.is_none() && !wants_fault {
            return;
        }
        let log = self.log_end(LogFile::Server, ENOUGH_LOG);
        for server in &mut glance.servers {
            if let (Some(limit), Some(bytes)) =
                (limit.as_deref_mut(), logged_limit(&log, server.pid))
            {
                *limit = limit.refined(bytes);
            }
            if wants_fault && server.state.is_some() && logged_fault(&log, server.pid) {
                server.state = Some(ServerState::Fault);
            }
        }
    }
}

/// Takes the answers apart. They follow each other without a mark between them: pids until the first
/// status word, then that server's clients until the next one.
fn read(mut lines: VecDeque<&str>, children: &[Pid]) -> Option<Vec<ServerSeen>> {
    let mut servers: Vec<ServerSeen> = pids(&mut lines)
        .into_iter()
        .map(|pid| ServerSeen {
            pid,
            state: None,
            clients: Vec::new(),
        })
        .collect();
    for child in children {
        // A server that goes between two questions answers the second one with this as well.
        let gone = format!("Server {child} not found");
        let state = match lines.pop_front()? {
            "INITIALIZING" => Some(ServerState::Initializing),
            "ACTIVE" => Some(ServerState::Active),
            "FAULT" => Some(ServerState::Fault),
            // Without get_server_status: a daemon answers nothing while a server starts, and faults stand in the log.
            answer if is_percentage(answer) => Some(ServerState::Active),
            answer if answer == gone => None,
            _ => return None,
        };
        let clients = pids(&mut lines);
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

    fn read_text(text: &str, children: &[u32]) -> Option<Vec<ServerSeen>> {
        let children: Vec<Pid> = children.iter().copied().map(Pid).collect();
        read(text.lines().collect(), &children)
    }

    fn server(pid: u32, state: Option<ServerState>, clients: &[u32]) -> ServerSeen {
        ServerSeen {
            pid: Pid(pid),
            state,
            clients: clients.iter().copied().map(Pid).collect(),
        }
    }

    #[test]
    fn servers_states_and_clients_are_told_apart() {
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
    fn a_program_without_get_server_status_tells_servers_and_clients_too() {
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
