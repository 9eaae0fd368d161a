use std::time::{Duration, Instant};

use crate::host::{Host, Pid, Process, ProcessTable, caller};
use crate::mps::{MpsProgram, is_daemon, serves_in};
use crate::node::client::ServerProcess;
use crate::node::snapshot::Node;
use crate::node::stray::Stray;
use crate::state::RunDir;

/// The time in which a server ends when its daemon has been killed.
const END_LIMIT: Duration = Duration::from_millis(200);

/// Finds the strays of the caller's run directory in the process table.
pub(super) fn find(host: &Host, table: &ProcessTable, run_dir: &RunDir, node: &mut Node) {
    let has_daemon = |server: &Process| table.get(server.parent).is_some_and(is_daemon);
    let servers = table
        .iter()
        .filter(|process| MpsProgram::of(process) == Some(MpsProgram::Server));
    let until = Instant::now() + END_LIMIT;
    let strays = servers
        .filter(|server| !has_daemon(server))
        .filter_map(|server| {
            let mut devices = node.devices().map(|device| device.uuid);
            let uuid = devices.find(|uuid| serves_in(server, &run_dir.pipe_dir(uuid)))?;
            // Any user can give a process this name and directory. A real stray has a context.
            let has_context = node.processes.get(&uuid).map(|processes| {
                let mut usages = processes.compute.iter();
                usages.any(|usage| usage.pid == server.pid.0)
            });
            if !has_context.unwrap_or(server.owner() == Some(caller())) {
                return None;
            }
            // It may have exited since the table was read, or be about to.
            let held = host.open_process(server.pid, server.started)?;
            if held.ends_within(until.saturating_duration_since(Instant::now())) {
                return None;
            }
            Some(Stray {
                clients: clients(node, &uuid),
                uuid,
                server: ServerProcess {
                    pid: server.pid,
                    user: server.owner(),
                },
                started: server.started,
            })
        });
    node.strays = strays.collect();
}

/// Returns the clients of a device that do not belong to the daemon that serves it now.
fn clients(node: &Node, uuid: &str) -> Option<Vec<Pid>> {
    let listed = &node.processes.get(uuid)?.clients;
    let served = node
        .served
        .iter()
        .find(|served| served.record.uuid == uuid && served.is_alive());
    if served.is_some_and(|served| !served.clients.are_known()) {
        return None;
    }
    let has = |pid: Pid| served.is_some_and(|served| served.clients.have(pid));
    let listed = listed.iter().map(|usage| Pid(usage.pid));
    Some(listed.filter(|&pid| !has(pid)).collect())
}
