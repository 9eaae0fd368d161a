//! Finds out how each recorded daemon is: passively first, then by asking it.

use std::path::PathBuf;
use std::time::Duration;

use super::{Client, DaemonId, Life, Look, Node, RunDir, Served, ServerProcess};
use crate::environment::{Environment, MpsPrograms};
use crate::host::{Host, Pid, Process, ProcessTable, Uid};
use crate::mps::{Daemon, Glance, Liveness, MpsError, ServerState};
use crate::nvml::{Processes, Usage};

/// For how long somebody else's control session is waited for before the daemon is called busy, and
/// for how long a daemon may take to answer.
const PATIENCE: Duration = Duration::from_millis(1500);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Reads the records of every run directory.
pub(super) fn read_records(environment: &Environment, node: &mut Node) {
    for path in environment.run_dirs() {
        let run_dir = RunDir::at(&path);
        let (records, problems) = run_dir.records();
        let unreadable = problems
            .into_iter()
            .map(|problem| (run_dir.clone(), problem));
        node.unreadable.extend(unreadable);
        match run_dir.node() {
            Ok(file) if file.boot_id == node.boot_id => {
                node.created.extend(file.created);
                node.switched_on.extend(file.switched_on);
            }
            Ok(_) => {}
            Err(error) => node.hidden.push(error.to_string()),
        }
        match run_dir.journal() {
            Ok(Some(journal)) if journal.is_of_the_dead(&environment.host) => {
                node.interrupted.push((run_dir.clone(), journal));
            }
            Ok(_) => {}
            // Only its owner may read it.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {}
            Err(error) => node.hidden.push(error.to_string()),
        }
        for record in records {
            // The system's directory comes first: its record of a name or device wins.
            let known = node.served.iter().find(|served| {
                let same = served.record.name == record.name || served.record.key == record.key;
                same && served.run_dir != run_dir
            });
            if let Some(known) = known {
                let hidden = format!(
                    "{} also has a device \"{}\": the one in {} is shown",
                    path.display(),
                    record.name,
                    known.run_dir.path().display()
                );
                node.hidden.push(hidden);
                continue;
            }
            node.served.push(Served {
                record,
                run_dir: run_dir.clone(),
                device_is_there: false,
                life: Life::Dead,
                is_known: false,
                problem: None,
                servers: Vec::new(),
                clients: Vec::new(),
                percentage: None,
            });
        }
    }
    let unreadable = node.unreadable.iter().map(|(_, problem)| problem.clone());
    node.hidden.extend(unreadable);
    node.served
        .sort_by_key(|served| natural(&served.record.name));
}

/// Looks at every recorded daemon.
pub(super) fn look(environment: &Environment, table: &ProcessTable, look: Look, node: &mut Node) {
    let devices: Vec<_> = node
        .devices()
        .map(|device| (device.key, device.uuid))
        .collect();
    let programs = environment.mps_programs().ok();
    let (boot_id, processes) = (&node.boot_id, &node.processes);
    // Control sessions are short-lived programs with limits of their own.
    std::thread::scope(|scope| {
        for served in &mut node.served {
            served.device_is_there = devices
                .iter()
                .any(|(key, uuid)| *key == served.record.key && *uuid == served.record.uuid);
            let view = View {
                may_ask: may_ask(environment, &served.run_dir),
                host: &environment.host,
                table,
                boot_id,
                processes: processes.get(&served.record.uuid),
                programs: programs.as_ref(),
            };
            let Some(daemon) = view.liveness(served) else {
                continue;
            };
            if look == Look::Geometry || look == Look::Status && view.tells(served, daemon) {
                continue;
            }
            scope.spawn(move || view.ask(served, daemon));
        }
    });
}

/// Whether the caller may open control sessions with the daemons of a run directory: with his own
/// and the system's. Root opens none in a user's directory, whose owner decides what is there.
fn may_ask(environment: &Environment, run_dir: &RunDir) -> bool {
    match run_dir.owner() {
        Some(owner) => owner == environment.caller || owner == Uid::ROOT,
        None => false,
    }
}

/// What one daemon is seen by.
#[derive(Clone, Copy)]
struct View<'a> {
    /// Whether the caller may open a control session with it.
    may_ask: bool,
    host: &'a Host,
    table: &'a ProcessTable,
    boot_id: &'a str,
    /// Who computes on the device; `None` where that is hidden.
    processes: Option<&'a Processes>,
    programs: Option<&'a MpsPrograms>,
}

impl View<'_> {
    /// Whether the recorded daemon lives: its process id if it can be looked at closer.
    fn liveness(self, served: &mut Served) -> Option<Pid> {
        let record = &served.record;
        let recorded = record.daemon.filter(|_| record.boot_id == self.boot_id);
        let is_recorded = |id: DaemonId| {
            let process = self.host.process(id.pid);
            process.is_some_and(|process| process.started == id.start_time)
        };
        let pid = match self.daemon(served).liveness() {
            Liveness::Held(pid) => pid,
            Liveness::HeldUnseen | Liveness::Hidden => {
                served.life = Life::Hidden;
                return None;
            }
            Liveness::Dead => {
                if recorded.is_some_and(is_recorded) {
                    served.life = Life::Orphan;
                }
                return None;
            }
        };
        if self.host.process(pid).is_none() {
            // Something lives there, and `/proc` hides it from the caller.
            served.life = Life::Hidden;
            return None;
        }
        // A lock that somebody else holds on a dead daemon's file means nothing.
        let ours = match record.daemon {
            Some(id) => recorded.is_some() && id.pid == pid && is_recorded(id),
            None => record.boot_id == self.boot_id,
        };
        if ours {
            served.life = if record.finished {
                Life::Hidden
            } else {
                Life::Starting
            };
        }
        ours.then_some(pid)
    }

    /// Fills in what can be told without a control session; `false` where a question is left.
    ///
    /// A fault lasts only as long as the clients that met it: a server that computes and has no
    /// clients serves. A server that NVML does not list yet is starting, and its daemon must be
    /// asked; so must one with clients.
    fn tells(self, served: &mut Served, daemon: Pid) -> bool {
        let Some(processes) = self.processes.filter(|_| served.record.finished) else {
            return false;
        };
        let is_running = |process: &Process| !process.is_stopped;
        if !processes.clients.is_empty() || !self.table.get(daemon).is_some_and(is_running) {
            return false;
        }
        let children: Vec<&Process> = self.table.children(daemon).collect();
        served.life = match children.as_slice() {
            [] if processes.compute.is_empty() => Life::NoServerYet,
            [only] if is_running(only) && lists(&processes.compute, only.pid) => Life::Ready,
            _ => return false,
        };
        served.is_known = true;
        served.servers = children
            .iter()
            .map(|child| self.server(child.pid))
            .collect();
        true
    }

    /// Asks the daemon.
    fn ask(self, served: &mut Served, daemon: Pid) {
        if self.programs.is_none() || !self.may_ask {
            return;
        }
        if self
            .table
            .get(daemon)
            .is_some_and(|process| process.is_stopped)
        {
            served.life = Life::NoAnswer;
            return;
        }
        let mut children: Vec<Pid> = self.table.children(daemon).map(|child| child.pid).collect();
        let mut glance = self
            .daemon(served)
            .glance(&children, PATIENCE, ANSWER_LIMIT);
        if let Ok(seen) = &glance
            && seen.servers.iter().any(|server| server.state.is_none())
        {
            // A server came up meanwhile, and may have clients already.
            children = seen.servers.iter().map(|server| server.pid).collect();
            glance = self
                .daemon(served)
                .glance(&children, PATIENCE, ANSWER_LIMIT);
        }
        match glance {
            Ok(glance) => self.fill_in(served, &glance),
            Err(MpsError::Busy { .. }) => {
                served.life = Life::Busy;
                served.servers = children.iter().map(|&pid| self.server(pid)).collect();
            }
            Err(MpsError::NoDaemon(_)) => served.life = Life::Dead,
            Err(error) => {
                served.life = Life::NoAnswer;
                served.problem = Some(error.to_string());
            }
        }
    }

    fn fill_in(self, served: &mut Served, glance: &Glance) {
        let says = |state| {
            glance
                .servers
                .iter()
                .any(|server| server.state == Some(state))
        };
        if served.record.finished {
            served.life = if says(ServerState::Fault) {
                Life::Fault
            } else if says(ServerState::Active) {
                Life::Ready
            } else if glance.servers.is_empty() {
                Life::NoServerYet
            } else {
                Life::Starting
            };
        }
        served.is_known = glance.servers.iter().all(|server| server.state.is_some());
        served.percentage = Some(glance.percentage);
        served.servers = glance
            .servers
            .iter()
            .map(|server| self.server(server.pid))
            .collect();
        let clients = glance.servers.iter().flat_map(|server| &server.clients);
        served.clients = clients.map(|&pid| self.client(pid)).collect();
    }

    fn daemon(self, served: &Served) -> Daemon {
        let pipe = served.run_dir.pipe_dir(&served.record.uuid);
        Daemon::new(
            self.programs.cloned().unwrap_or_default(),
            pipe,
            PathBuf::new(),
        )
    }

    fn server(self, pid: Pid) -> ServerProcess {
        ServerProcess {
            pid,
            user: self.host.process(pid).and_then(|process| process.owner()),
        }
    }

    fn client(self, pid: Pid) -> Client {
        let process = self.host.process(pid);
        let usages = self
            .processes
            .into_iter()
            .flat_map(|processes| processes.clients.iter().chain(&processes.compute));
        Client {
            pid,
            user: process.as_ref().and_then(Process::owner),
            command: process.as_ref().map(Process::command),
            memory: usages
                .filter(|usage| usage.pid == pid.0)
                .find_map(|usage| usage.memory),
            age: process.as_ref().and_then(Process::age),
        }
    }
}

fn lists(usages: &[Usage], pid: Pid) -> bool {
    usages.iter().any(|usage| usage.pid == pid.0)
}

/// Splits a name so that `0.10` sorts behind `0.9`.
fn natural(name: &str) -> Vec<(u64, String)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let text = tail
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(tail.len());
        // Where there is no number, the text comes behind every number.
        parts.push((number.parse().unwrap_or(u64::MAX), tail[..text].to_owned()));
        rest = &tail[text..];
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_as_people_count() {
        let mut names = vec![
            "0.10",
            "0.9",
            "trainer-10",
            "1.0",
            "trainer-9",
            "0.0.c1",
            "0.0",
        ];
        names.sort_by_key(|name| natural(name));
        assert_eq!(
            names,
            [
                "0.0",
                "0.0.c1",
                "0.9",
                "0.10",
                "1.0",
                "trainer-9",
                "trainer-10"
            ]
        );
    }
}
