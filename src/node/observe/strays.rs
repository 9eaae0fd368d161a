//! Servers that outlived their daemons.

use std::time::{Duration, Instant};

use crate::host::{Host, Pid, ProcessTable, caller};
use crate::mps::{MpsProgram, is_daemon, serves_in};
use crate::node::{Node, ServerProcess, Stray};
use crate::state::RunDir;

/// The time in which a server ends when its daemon has been killed.
const END_LIMIT: Duration = Duration::from_millis(200);

/// Finds the strays of the caller's run directory in the process table.
pub(super) fn find(host: &Host, table: &ProcessTable, run_dir: &RunDir, node: &mut Node) {
    let until = Instant::now() + END_LIMIT;
    let mut strays = Vec::new();
    for server in table.iter() {
        let has_daemon = || table.get(server.parent).is_some_and(is_daemon);
        if MpsProgram::of(server) != Some(MpsProgram::Server) || has_daemon() {
            continue;
        }
        let mut devices = node.devices().map(|device| device.uuid);
        let Some(uuid) = devices.find(|uuid| serves_in(server, &run_dir.pipe_dir(uuid))) else {
            continue;
        };
        // Any user can give a process this name and directory. A real stray has a context.
        let processes = node.processes.get(&uuid);
        let has_context = processes.map(|processes| {
            processes
                .compute
                .iter()
                .any(|usage| usage.pid == server.pid.0)
        });
        if !has_context.unwrap_or(server.owner() == Some(caller())) {
            continue;
        }
        // It may have exited since the table was read, or be about to.
        let has_ended = match host.open_process(server.pid, server.started) {
            Ok(Some(held)) => held.ends_by(until),
            Ok(None) => true,
            Err(_) => false,
        };
        if !has_ended {
            strays.push(Stray {
                clients: clients(node, &uuid),
                uuid,
                server: ServerProcess::of(server),
                started: server.started,
            });
        }
    }
    node.strays = strays;
}

/// Returns the clients of a device that do not belong to the daemon that serves it now.
fn clients(node: &Node, uuid: &str) -> Option<Vec<Pid>> {
    let listed = node.processes.get(uuid)?.clients.iter();
    let served = node.serving(uuid);
    if served.is_some_and(|served| !served.clients.are_known()) {
        return None;
    }
    let has = |pid: Pid| served.is_some_and(|served| served.clients.have(pid));
    let pids = listed.map(|usage| Pid(usage.pid));
    Some(pids.filter(|&pid| !has(pid)).collect())
}
