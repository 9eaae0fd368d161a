use super::{Node, ServerProcess};
use crate::host::{Host, Pid, Process, ProcessTable, StartTime, caller};
use crate::mps::{MpsProgram, is_daemon, serves_in};
use crate::state::RunDir;

/// A server in one of our pipe directories that outlived its daemon. It keeps its GPU memory until it is ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// The UUID of its device.
    pub uuid: String,
    /// Its process.
    pub server: ServerProcess,
    /// With the pid, its identity.
    pub started: StartTime,
    /// The clients on its device that no daemon accounts for; `None` where the driver hides clients.
    pub clients: Option<Vec<Pid>>,
}

impl Stray {
    /// True if ending it disrupts nobody.
    pub fn is_idle(&self) -> bool {
        self.clients.as_ref().is_some_and(Vec::is_empty)
    }
}

/// Finds them in the process table. `ours` is the run directory that the caller changes.
pub(super) fn find(host: &Host, table: &ProcessTable, ours: &RunDir, node: &mut Node) {
    let has_daemon = |server: &Process| table.get(server.parent).is_some_and(is_daemon);
    let servers = table
        .iter()
        .filter(|process| MpsProgram::of(process) == Some(MpsProgram::Server));
    let strays = servers
        .filter(|server| !has_daemon(server))
        .filter_map(|server| {
            let mut devices = node.devices().map(|device| device.uuid);
            let uuid = devices.find(|uuid| serves_in(server, &ours.pipe_dir(uuid)))?;
            // Anybody can call a process so. A server that has outlived its daemon has a context.
            let has_context = node.processes.get(&uuid).map(|processes| {
                let mut usages = processes.compute.iter();
                usages.any(|usage| usage.pid == server.pid.0)
            });
            if !has_context.unwrap_or(server.owner() == Some(caller())) {
                return None;
            }
            // One that has ended since left no stray.
            host.open_process(server.pid, server.started)?;
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

/// The clients of a device that the daemon that serves there now does not have.
fn clients(node: &Node, uuid: &str) -> Option<Vec<Pid>> {
    let listed = &node.processes.get(uuid)?.clients;
    let served = node
        .served
        .iter()
        .find(|served| served.record.uuid == uuid && served.is_alive());
    if served.is_some_and(|served| !served.is_known) {
        return None;
    }
    let has = |pid: Pid| {
        let mut clients = served.into_iter().flat_map(|served| &served.clients);
        clients.any(|client| client.pid == pid)
    };
    let listed = listed.iter().map(|usage| Pid(usage.pid));
    Some(listed.filter(|&pid| !has(pid)).collect())
}
