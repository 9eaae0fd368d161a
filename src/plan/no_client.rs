//! Explains what a process is that is not a client of a device.

use super::{Obstacle, Refusal};
use crate::host::Pid;
use crate::node::{Client, Node, Served};

/// Returns the reason why a process is not a client that could be terminated.
pub(super) fn no_client(node: &Node, served: &Served, pid: Pid) -> Refusal {
    let name = &served.record.name;
    if served
        .waiting
        .iter()
        .any(|waiting| waiting.pid == Some(pid))
    {
        return Obstacle::new(
            format!(
                "pid {pid} is not a client of {name} yet: it waits in cuInit until another user's programs have exited, and has nothing on the GPU"
            ),
            format!("end the process itself: kill {pid}"),
        )
        .into();
    }
    let (what, hint) = elsewhere(node, served, pid).unwrap_or_else(|| {
        let clients = served.clients.listed();
        let pids = clients.iter().filter_map(|client| Some(client.pid?.to_string()));
        let pids: Vec<String> = pids.collect();
        let unseen = clients.len() - pids.len();
        let hint = match (unseen, pids.as_slice()) {
            (0, []) => "it has no clients".to_owned(),
            (0, pids) => format!("its clients are pid {}", pids.join(", ")),
            (unseen, _) => format!(
                "the daemon does not see the pids of {unseen} of its clients, in containers that number processes \
                 anew: end them there, or all clients with mig-mps restart {name} --force"
            ),
        };
        (format!("pid {pid} is not a client of {name}"), hint)
    });
    Refusal::NotMeant(Obstacle::new(what, hint))
}

/// Returns what the process is instead, if known, with a hint.
fn elsewhere(node: &Node, here: &Served, pid: Pid) -> Option<(String, String)> {
    let name = &here.record.name;
    let what = |is: String| format!("pid {pid} is not a client of {name}: it {is}");
    let end_itself = || format!("end the process itself: kill {pid}");
    for served in &node.served {
        let of = &served.record.name;
        let is_client = |clients: &[Client]| clients.iter().any(|client| client.pid == Some(pid));
        if is_client(served.clients.listed()) {
            let hint = format!("mig-mps kill {of} {pid}");
            return Some((what(format!("is one of {of}")), hint));
        }
        if is_client(&served.waiting) {
            return Some((what(format!("waits for {of}")), end_itself()));
        }
        let daemon = served.record.daemon.filter(|_| served.is_alive());
        let program = if daemon.is_some_and(|daemon| daemon.pid == pid) {
            "control daemon"
        } else if served.servers.iter().any(|server| server.pid == pid) {
            "MPS server"
        } else {
            continue;
        };
        let hint = format!("mig-mps restart {of} ends both and starts others");
        return Some((what(format!("is the {program} of {of}")), hint));
    }
    for (uuid, processes) in &node.processes {
        let of = node.name_of_uuid(uuid);
        let served = node.serving(uuid);
        let is_known = served.is_none_or(|served| served.clients.are_known());
        let how = if processes.clients.iter().any(|usage| usage.pid == pid.0) {
            "through an MPS daemon that mig-mps has not started"
        } else if is_known && node.unaccounted_for(uuid).contains(&pid) {
            "outside MPS, where no daemon can end its work"
        } else {
            continue;
        };
        return Some((what(format!("computes on {of} {how}")), end_itself()));
    }
    None
}
