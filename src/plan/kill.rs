//! Clients whose work on a device is ended.

use super::daemons::{hangs, unknowable, unreadable, unserved};
use super::instance_use::is_unknowable;
use super::no_client::no_client;
use super::{ClientOf, Obstacle, Refusal};
use crate::host::{Pid, StartTime, Uid, user_name};
use crate::mps::ControlProgram;
use crate::node::{Client, DaemonState, Node, Served};
use crate::settings::Serve;
use crate::state::RunDir;

/// Clients of one device to terminate.
#[derive(Clone, Debug, PartialEq)]
pub struct Kill {
    /// The device's name.
    pub name: String,
    /// The UUID its directory is called by.
    pub uuid: String,
    /// Where that directory is.
    pub run_dir: RunDir,
    /// The features of the driver's control program.
    pub program: ControlProgram,
    /// The clients.
    pub victims: Vec<Victim>,
    /// The number of its other clients, which continue.
    pub others: usize,
    /// True after a fatal GPU fault of its server: nobody computes there until all clients have left.
    pub has_fault: bool,
}

/// A client to terminate.
#[derive(Clone, Debug, PartialEq)]
pub struct Victim {
    /// The client, for messages.
    pub client: ClientOf,
    /// Its process id.
    pub pid: Pid,
    /// When its process started; `None` where that cannot be seen.
    pub started: Option<StartTime>,
    /// The server that has it.
    pub server: Pid,
    /// True if a signal may be sent to its process: its server's user owns it, or the driver lists it as a client. The
    /// daemon's word is not enough.
    pub is_certain: bool,
}

/// Plans to terminate clients of a device, if `caller` may. `owner` is the owner of the run directory.
///
/// # Errors
/// [`Refusal::NotMeant`] if a process is not a client of that device.
pub fn kill(
    node: &Node,
    run_dir: &RunDir,
    name: &str,
    pids: &[Pid],
    (caller, owner): (Uid, Option<Uid>),
) -> Result<Kill, Refusal> {
    let served = serving(node, run_dir, name)?;
    if caller == Uid::ROOT && served.is_a_users() {
        return Err(only_its_user(served, pids).into());
    }
    let mut kill = Kill {
        name: name.to_owned(),
        uuid: served.record.uuid.clone(),
        run_dir: served.run_dir.clone(),
        program: node.control_program(),
        victims: Vec::new(),
        others: 0,
        has_fault: served.state == DaemonState::Fault,
    };
    for (at, &pid) in pids.iter().enumerate() {
        let client = served
            .clients
            .listed()
            .iter()
            .find(|client| client.pid == Some(pid));
        let asked = client.and_then(|client| client.server);
        let Some((client, asked)) = client.zip(asked) else {
            return Err(no_client(node, served, pid));
        };
        // The daemon lets the user of a server change what is its own, and only root and its own user anything else.
        let mut servers = served.servers.iter();
        let of = servers.find(|server| server.pid == asked);
        let of = of.and_then(|server| server.user);
        if caller != Uid::ROOT && owner != Some(caller) && of != Some(caller) {
            return Err(not_permitted(name, owner, of));
        }
        if !pids[..at].contains(&pid) {
            kill.victims.push(Victim {
                client: ClientOf::of(served, client),
                pid,
                started: client.started,
                server: asked,
                is_certain: is_certain(node, served, client, of),
            });
        }
    }
    kill.others = served.clients.listed().len() - kill.victims.len();
    Ok(kill)
}

impl Kill {
    /// Checks that the processes can be sent a signal.
    ///
    /// # Errors
    /// [`Refusal::InTheWay`] if one is not visible: its pid may be another process here.
    pub fn permits_signals(&self) -> Result<(), Refusal> {
        let mut victims = self.victims.iter();
        if let Some(doubtful) = victims.find(|victim| !victim.is_certain) {
            return Err(Obstacle {
                what: format!(
                    "the process of {} is not its server's user's, and the driver does not list it as a client",
                    doubtful.client
                ),
                hint: "leave --signal out, or end the process itself".to_owned(),
            }
            .into());
        }
        let mut victims = self.victims.iter();
        match victims.find(|victim| victim.started.is_none()) {
            None => Ok(()),
            Some(unseen) => Err(Obstacle {
                what: format!(
                    "the process of {} cannot be seen from here: it can be sent no signal",
                    unseen.client
                ),
                hint: "leave --signal out, or run it where /proc shows that process".to_owned(),
            }
            .into()),
        }
    }

    /// Checks that they can be terminated without a signal.
    ///
    /// # Errors
    /// [`Refusal::InTheWay`] in a fault: it has terminated them, and only their processes are in the way.
    pub fn permits_none(&self) -> Result<(), Refusal> {
        if !self.has_fault {
            return Ok(());
        }
        Err(Obstacle {
            what: format!(
                "{} has met a GPU fault: its clients' work has ended, and it serves again when their processes have",
                self.name
            ),
            hint: "end them with --signal".to_owned(),
        }
        .into())
    }

    /// The pids of those who are still the clients that they were; another process may have been given a pid.
    pub fn left(&self, node: &Node) -> Vec<Pid> {
        let mut served = node.served.iter();
        let served = served.find(|served| {
            served.run_dir == self.run_dir
                && served.record.uuid == self.uuid
                && served.clients.are_known()
        });
        let Some(served) = served else {
            // The next plan reports why nothing is known about them.
            return self.victims.iter().map(|victim| victim.pid).collect();
        };
        let is_there = |victim: &&Victim| {
            let is_it = |client: &Client| {
                client.pid == Some(victim.pid) && client.started == victim.started
            };
            served.clients.listed().iter().any(is_it)
        };
        let left = self.victims.iter().filter(is_there);
        left.map(|victim| victim.pid).collect()
    }
}

/// True if more than a daemon's word makes a process a client.
fn is_certain(node: &Node, served: &Served, client: &Client, user: Option<Uid>) -> bool {
    let listed = node.processes.get(&served.record.uuid);
    let is_listed = listed.is_some_and(|processes| {
        let mut clients = processes.clients.iter();
        clients.any(|usage| Some(Pid(usage.pid)) == client.pid)
    });
    is_listed || (client.user.is_some() && client.user == user)
}

/// Root ends no client of a user's daemon by a control session.
fn only_its_user(served: &Served, pids: &[Pid]) -> Obstacle {
    let name = &served.record.name;
    let pids: Vec<String> = pids.iter().map(Pid::to_string).collect();
    let serve = served.record.settings.serve.as_ref();
    let user = match serve {
        Some(Serve::User(user)) => user.as_str(),
        _ => "USER",
    };
    Obstacle {
        what: format!("the daemon of {name} is {user}'s: root opens no control session with it"),
        hint: format!(
            "runuser -u {user} -- mig-mps kill {name} {}",
            pids.join(" ")
        ),
    }
}

/// Returns the served device of that name, if its daemon can list its clients.
fn serving<'a>(node: &'a Node, run_dir: &RunDir, name: &str) -> Result<&'a Served, Refusal> {
    let mut named = node.served.iter();
    let Some(served) = named.find(|served| served.record.name == name) else {
        return Err(unreadable(node, run_dir)
            .unwrap_or_else(|| {
                let obstacle = Obstacle {
                    what: format!("{name} has no clients: no daemon of mig-mps serves it"),
                    hint: "mig-mps status shows who computes there".to_owned(),
                };
                unserved(node, name, "kill", obstacle)
            })
            .into());
    };
    if served.state == DaemonState::Dead {
        return Err(Obstacle {
            what: format!("the daemon of {name} has died, and its clients get CUDA error 806"),
            hint: format!("mig-mps restart {name} starts it again"),
        }
        .into());
    }
    if served.state == DaemonState::Hung {
        return Err(hangs(served).into());
    }
    if is_unknowable(served) {
        return Err(unknowable(served).into());
    }
    Ok(served)
}

fn not_permitted(name: &str, owner: Option<Uid>, server: Option<Uid>) -> Refusal {
    let mut who = vec![Uid::ROOT];
    who.extend(owner);
    who.extend(server);
    who.sort_unstable();
    who.dedup();
    let who: Vec<String> = who.into_iter().map(user_name).collect();
    Obstacle {
        what: format!(
            "not enough privilege to end a client of {name}: its server obeys {} alone",
            who.join(" and ")
        ),
        hint: "run this as root".to_owned(),
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::super::example::{ALICE, BOB, client, node, run_dir};
    use super::*;
    use crate::node::Clients;

    /// Two servers of one device, the second root's, with a client each.
    fn two_servers() -> Node {
        let mut node = node();
        let served = &mut node.served[2];
        let mut second = client(served, 12);
        second.server = Some(Pid(9));
        let first = client(served, 11);
        served.clients = Clients::Known(vec![first, second]);
        served.servers.push(crate::node::ServerProcess {
            pid: Pid(9),
            user: Some(Uid::ROOT),
        });
        node
    }

    #[test]
    fn the_server_that_has_a_client_is_the_one_that_is_asked() {
        let who = (Uid::ROOT, Some(Uid::ROOT));
        let pids = [Pid(12), Pid(11), Pid(12)];
        let kill = kill(&two_servers(), &run_dir(), "1", &pids, who).unwrap();
        let victims = kill.victims.iter();
        let asked: Vec<(u32, u32)> = victims.map(|v| (v.server.0, v.pid.0)).collect();
        assert_eq!((asked, kill.others), (vec![(9, 12), (3, 11)], 0));
    }

    #[test]
    fn root_the_owner_and_the_servers_user_may() {
        let may = |caller, owner, pid| {
            kill(
                &two_servers(),
                &run_dir(),
                "1",
                &[Pid(pid)],
                (caller, Some(owner)),
            )
            .is_ok()
        };
        for (caller, owner, first, second) in [
            (Uid::ROOT, Uid::ROOT, true, true),
            (Uid::ROOT, BOB, true, true),
            (BOB, BOB, true, true),
            (ALICE, Uid::ROOT, true, false),
            (BOB, Uid::ROOT, false, false),
        ] {
            assert_eq!(
                (may(caller, owner, 11), may(caller, owner, 12)),
                (first, second)
            );
        }
    }

    #[test]
    fn another_process_with_the_same_pid_is_another() {
        let mut node = two_servers();
        let who = (Uid::ROOT, Some(Uid::ROOT));
        let shown = kill(&node, &run_dir(), "1", &[Pid(11), Pid(12)], who).unwrap();
        assert_eq!(shown.left(&node), [Pid(11), Pid(12)]);
        let mut clients = node.served[2].clients.listed().to_vec();
        clients[0].started = Some(StartTime(5));
        node.served[2].clients = Clients::Known(clients.clone());
        assert_eq!(shown.left(&node), [Pid(12)]);
        // What is not known has not gone.
        node.served[2].clients = Clients::Partial(clients);
        assert_eq!(shown.left(&node), [Pid(11), Pid(12)]);
    }
}
