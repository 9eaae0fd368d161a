//! Clients whose work on a device is ended.

use std::collections::BTreeSet;

use super::preconditions::{Verb, find_device_for_command};
use super::refusal::{check_driver_version, not_a_client};
use super::{ClientOf, Plan, Refusal, Signal};
use crate::failure::Problem;
use crate::host::{Pid, StartTime, Uid, join_words, quote_for_shell, root_hint, user_name};
use crate::mps::ClientPolicy;
use crate::node::{Client, DaemonState, Device, Node, Served};
use crate::state::RunDir;

/// A request to end the work of clients.
#[derive(Debug)]
pub struct KillRequest<'a> {
    /// The device's name.
    pub device: &'a str,
    /// The clients' process ids.
    pub pids: &'a [Pid],
    /// The signal for their processes.
    pub signal: Option<Signal>,
    /// The time that they get to exit by themselves.
    pub patience: ClientPolicy,
    /// Who asks.
    pub caller: Uid,
    /// The owner of the device's run directory.
    pub owner: Option<Uid>,
    /// The plan that was shown first. A client of it that has left since is no mistake any more.
    pub shown: Option<&'a Plan>,
}

/// Clients of one device to terminate.
#[derive(Clone, Debug, PartialEq)]
pub struct Kill {
    pub name: String,
    /// The UUID its directory is called by.
    pub uuid: String,
    /// Where that directory is.
    pub run_dir: RunDir,
    /// True if the caller owns that directory.
    pub is_callers: bool,
    /// The clients.
    pub victims: Vec<Victim>,
    /// The number of its other clients, which continue.
    pub others: usize,
    /// True after a fatal GPU fault of its server: it accepts no client until the affected ones have left.
    pub has_fault: bool,
    /// The signal for their processes.
    pub signal: Option<Signal>,
    /// The time that they get to exit by themselves.
    pub patience: ClientPolicy,
}

/// A client to terminate.
#[derive(Clone, Debug, PartialEq)]
pub struct Victim {
    /// The client, for messages.
    pub client: ClientOf,
    pub pid: Pid,
    /// When its process started; `None` where that cannot be seen.
    pub started: Option<StartTime>,
    /// The server that has it.
    pub server: Pid,
    /// True if a signal may be sent to its process: its server's user owns it, or the driver lists it as a client. The
    /// daemon's word is not enough.
    pub is_certain: bool,
    /// True if the GPU fault of a joint device has not reached it: it still works.
    pub is_unaffected: bool,
}

impl Kill {
    /// The clients, for messages.
    pub fn clients(&self) -> impl Iterator<Item = &ClientOf> {
        self.victims.iter().map(|victim| &victim.client)
    }

    /// Names the clients among them that the GPU fault has not reached.
    pub fn describe_working(&self) -> Option<String> {
        let pids: Vec<String> = self
            .victims
            .iter()
            .filter(|victim| victim.is_unaffected)
            .map(|victim| victim.pid.to_string())
            .collect();
        match pids.as_slice() {
            [] => None,
            [pid] => Some(format!(
                "pid {pid} still works: the GPU fault has not reached it"
            )),
            pids => Some(format!(
                "pids {} still work: the GPU fault has not reached them",
                pids.join(", ")
            )),
        }
    }

    /// Checks that the signal can be sent to every process. A fault has ended the clients' work already, so only a
    /// signal has an effect then.
    pub(super) fn check_signal(&self) -> Result<(), Problem> {
        if self.signal.is_none() && !self.has_fault {
            return Ok(());
        }
        if self.signal.is_none() {
            if let Some(working) = self.describe_working() {
                let hint = "list only the affected clients, and use --signal; --signal also ends a client that still works";
                return Err(Problem::new(working, hint));
            }
            let what = format!(
                "device {} had a GPU fault: the work of the affected clients has ended, and it accepts programs again \
                 when their processes have exited",
                self.name
            );
            return Err(Problem::new(what, "use --signal to end the processes"));
        }
        if let Some(Victim { client, .. }) = self.victims.iter().find(|victim| !victim.is_certain) {
            let what = format!(
                "the process of {client} does not belong to the user of its server, and the driver does not list it \
                 as a client"
            );
            let hint = "omit --signal, or end the process itself";
            return Err(Problem::new(what, hint));
        }
        let hidden = self.victims.iter().find(|victim| victim.started.is_none());
        if let Some(Victim { client, .. }) = hidden {
            let what = format!(
                "the process of {client} cannot be seen from here, so no signal can be sent"
            );
            let hint = "omit --signal, or run the command where /proc shows that process";
            return Err(Problem::new(what, hint));
        }
        Ok(())
    }
}

/// Returns the one of these devices that has these clients; the only device in any case.
///
/// # Errors
/// [`Refusal::NotMeant`] if no single one has all these clients.
pub fn device_with_clients(node: &Node, names: &[String], pids: &[Pid]) -> Result<String, Refusal> {
    if let [only] = names {
        return Ok(only.clone());
    }
    let is_client = |name: &String, pid: &Pid| {
        let served = node.served_named(name);
        served.is_some_and(|served| served.clients.contains_pid(*pid))
    };
    let with_all = |name: &&String| pids.iter().all(|pid| is_client(name, pid));
    if let Some(found) = names.iter().find(with_all) {
        return Ok(found.clone());
    }
    let strangers: Vec<String> = pids
        .iter()
        .filter(|pid| !names.iter().any(|name| is_client(name, pid)))
        .map(Pid::to_string)
        .collect();
    if !strangers.is_empty() {
        let what = format!(
            "none of {} has client {}",
            names.join(", "),
            join_words(&strangers, "or")
        );
        let hint = "run `mig-mps status` to see the clients of each device";
        return Err(Refusal::NotMeant(Problem::new(what, hint)));
    }
    let commands: Vec<String> = names
        .iter()
        .filter_map(|name| {
            let own: Vec<String> = pids
                .iter()
                .filter(|pid| is_client(name, pid))
                .map(Pid::to_string)
                .collect();
            let command = format!("`mig-mps kill {} {}`", quote_for_shell(name), own.join(" "));
            (!own.is_empty()).then_some(command)
        })
        .collect();
    let what = "mig-mps kill ends clients of one device, and these are clients of several devices";
    let hint = format!("run {}", join_words(&commands, "and"));
    Err(Refusal::NotMeant(Problem::new(what, hint)))
}

/// Plans to terminate clients of a device, if the caller may.
///
/// # Errors
/// [`Refusal::NotMeant`] if a process is not a client of that device.
pub fn kill(node: &Node, run_dir: &RunDir, request: &KillRequest<'_>) -> Result<Plan, Refusal> {
    check_driver_version(node)?;
    let name = request.device;
    let (device, served) = find_device_for_command(node, run_dir, name, Verb::Kill)?;
    let mut victims: Vec<Victim> = Vec::new();
    for pid in pids_still_present(request, served) {
        if victims.iter().all(|victim| victim.pid != pid) {
            victims.push(find_victim(node, (device, served), request, pid)?);
        }
    }
    let kill = Kill {
        name: name.to_owned(),
        uuid: served.record.uuid.clone(),
        run_dir: served.run_dir.clone(),
        is_callers: request.owner == Some(request.caller),
        others: served.clients.as_slice().len() - victims.len(),
        has_fault: served.state == DaemonState::Fault,
        signal: request.signal,
        patience: request.patience,
        victims,
    };
    kill.check_signal()?;
    Ok(Plan {
        kill: (!kill.victims.is_empty()).then_some(kill),
        ..Plan::default()
    })
}

/// The process ids, without those of clients that have left since the plan was shown: another process may have been
/// given one.
fn pids_still_present(request: &KillRequest<'_>, served: &Served) -> Vec<Pid> {
    let mut pids = request.pids.to_vec();
    let shown = request.shown.and_then(|plan| plan.kill.as_ref());
    if let Some(kill) = shown
        && served.clients.are_known()
    {
        pids.retain(|pid| {
            let victim = kill.victims.iter().find(|victim| victim.pid == *pid);
            victim.is_none_or(|victim| {
                served
                    .clients
                    .as_slice()
                    .iter()
                    .any(|one| one.pid == Some(*pid) && one.started == victim.started)
            })
        });
    }
    pids
}

fn find_victim(
    node: &Node,
    (device, served): (&Device, &Served),
    request: &KillRequest<'_>,
    pid: Pid,
) -> Result<Victim, Refusal> {
    let client = served
        .clients
        .as_slice()
        .iter()
        .find(|client| client.pid == Some(pid));
    let asked = client.and_then(|client| client.server);
    let Some((client, asked)) = client.zip(asked) else {
        return Err(not_a_client(node, served, pid));
    };
    let of = user_of_server(served, asked);
    if !may_end_client(served, client, request.caller, request.owner) {
        return Err(not_permitted(served, client, request, of).into());
    }
    Ok(Victim {
        client: ClientOf::from_client(served, client),
        pid,
        started: client.started,
        server: asked,
        is_certain: is_certain(device, client, of),
        is_unaffected: served.state == DaemonState::Fault && served.unaffected.contains(&pid),
    })
}

/// True if this user may end a client, of a device whose run directory has this owner. The daemon lets the user of a server change
/// what is its own, and only root and its own user anything else.
pub fn may_end_client(served: &Served, client: &Client, caller: Uid, owner: Option<Uid>) -> bool {
    let of = client
        .server
        .and_then(|server| user_of_server(served, server));
    caller == Uid::ROOT || owner == Some(caller) || of == Some(caller)
}

fn user_of_server(served: &Served, pid: Pid) -> Option<Uid> {
    served.servers.iter().find(|server| server.pid == pid)?.user
}

/// True if more than a daemon's word makes a process a client.
fn is_certain(device: &Device, client: &Client, user: Option<Uid>) -> bool {
    let is_listed = device
        .processes
        .as_ref()
        .zip(client.pid)
        .is_some_and(|(processes, pid)| processes.contains_client(pid));
    is_listed || (client.user.is_some() && client.user == user)
}

fn not_permitted(
    served: &Served,
    client: &Client,
    request: &KillRequest<'_>,
    server_user: Option<Uid>,
) -> Problem {
    let users: BTreeSet<Uid> = [Some(Uid::ROOT), request.owner, server_user]
        .into_iter()
        .flatten()
        .collect();
    let who: Vec<String> = users.into_iter().map(user_name).collect();
    let what = format!(
        "not enough privilege to end a client of device {}: only {} may control its server",
        request.device,
        who.join(" and ")
    );
    // A user needs no daemon to end the user's own processes.
    let is_own = |client: &&Client| client.user == Some(request.caller);
    if !is_own(&client) {
        return Problem::new(what, root_hint());
    }
    let own: Vec<String> = served
        .clients
        .as_slice()
        .iter()
        .filter(is_own)
        .filter_map(|client| client.pid)
        .filter(|pid| request.pids.contains(pid))
        .map(|pid| pid.to_string())
        .collect();
    let hint = match own.as_slice() {
        [pid] => format!("run `kill {pid}` to end it, because it is your own program"),
        pids => format!(
            "run `kill {}` to end them, because they are your own programs",
            pids.join(" ")
        ),
    };
    Problem::new(what, hint)
}

#[cfg(test)]
mod tests {
    use super::super::example::{ALICE, BOB, client, node, nth_served, run_dir};
    use super::*;
    use crate::host::StartTime;
    use crate::node::Clients;

    /// Two servers of one device, the second root's, with a client each.
    fn two_servers() -> Node {
        let mut node = node();
        let served = nth_served(&mut node, 2);
        let mut second = client(served, 12);
        second.server = Some(Pid(9));
        let first = client(served, 11);
        served.clients = Clients::Known(vec![first, second]);
        served.servers.push(crate::node::ServerProcess {
            pid: Pid(9),
            user: Some(Uid::ROOT),
            started: None,
        });
        node
    }

    fn request(pids: &[Pid], caller: Uid, owner: Uid) -> KillRequest<'_> {
        KillRequest {
            device: "1",
            pids,
            signal: None,
            patience: ClientPolicy::Force(0),
            caller,
            owner: Some(owner),
            shown: None,
        }
    }

    #[test]
    fn the_server_that_has_a_client_is_the_one_that_is_asked() {
        let pids = [Pid(12), Pid(11), Pid(12)];
        let request = request(&pids, Uid::ROOT, Uid::ROOT);
        let plan = kill(&two_servers(), &run_dir(), &request).unwrap();
        let kill = plan.kill.unwrap();
        let asked: Vec<(u32, u32)> = kill.victims.iter().map(|v| (v.server.0, v.pid.0)).collect();
        assert_eq!((asked, kill.others), (vec![(9, 12), (3, 11)], 0));
    }

    #[test]
    fn root_the_owner_and_the_servers_user_may() {
        let may = |caller, owner, pid| {
            let pids = [Pid(pid)];
            kill(&two_servers(), &run_dir(), &request(&pids, caller, owner)).is_ok()
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
        let pids = [Pid(11), Pid(12)];
        let mut request = request(&pids, Uid::ROOT, Uid::ROOT);
        let shown = kill(&node, &run_dir(), &request).unwrap();
        request.shown = Some(&shown);
        let left = |node: &Node| {
            let plan = kill(node, &run_dir(), &request).unwrap();
            let victims = plan.kill.unwrap().victims;
            let pids = victims.iter().map(|victim| victim.pid);
            pids.collect::<Vec<_>>()
        };
        assert_eq!(left(&node), [Pid(11), Pid(12)]);
        let mut clients = nth_served(&mut node, 2).clients.as_slice().to_vec();
        clients[0].started = Some(StartTime(5));
        nth_served(&mut node, 2).clients = Clients::Known(clients.clone());
        assert_eq!(left(&node), [Pid(12)]);
        nth_served(&mut node, 2).clients = Clients::Known(Vec::new());
        assert!(kill(&node, &run_dir(), &request).unwrap().is_empty());
        // Without a plan that was shown it is a mistake.
        request.shown = None;
        assert!(kill(&node, &run_dir(), &request).is_err());
    }
}
