//! Finds programs that compute outside MPS, and servers that outlived their daemons. CUDA falls back to that without a
//! message if it finds no daemon.

use std::time::{Duration, Instant};

use crate::host::{Holder, Host, Pid, Process, ProcessTable, caller, is_service};
use crate::mps::{MpsProgram, is_daemon, uses_pipe_dir};
use crate::node::{Device, Node, OutsideCause, OutsideMps, ServerProcess, Stray, Unseen};
use crate::nvml::{Nvml, Usage};
use crate::state::RunDir;

/// Finds the processes that compute, are no MPS servers, and are on no list of clients, in two samples. One sample is
/// not enough: NVML makes its two lists one after the other.
pub(super) fn find_programs(host: &Host, table: &ProcessTable, nvml: Nvml, node: &mut Node) {
    // The second sample follows the last first one.
    let suspects: Vec<Vec<(Pid, Option<Process>)>> = node
        .devices
        .iter()
        .map(|device| find_suspects(host, node, table, device))
        .collect();
    for (nth, suspects) in suspects.into_iter().enumerate() {
        if suspects.is_empty() {
            continue;
        }
        let device = &node.devices[nth];
        let Some(second) = nvml.query_processes_on(device.driver_uuids()) else {
            // The device was destroyed meanwhile.
            continue;
        };
        let (mut found, mut unseen) = (Vec::new(), 0);
        for (pid, before) in suspects {
            if !second.contains_pid(pid) || second.contains_client(pid) {
                continue;
            }
            match (before, host.find_process(pid)) {
                (Some(before), Some(now)) if before.started == now.started => {
                    let usage = second.compute.iter().find(|usage| usage.pid == pid);
                    found.push(read_outside_mps(host, node, device, &now, usage));
                }
                (None, None) => unseen += 1,
                _ => {}
            }
        }
        if unseen > 0 {
            let name = &device.name;
            let (what, is, it) = match unseen {
                1 => ("process", "is", "it"),
                _ => ("processes", "are", "them"),
            };
            let hidden = format!(
                "what {unseen} {what} on {name} {is}: /proc does not show {it}, so MPS servers cannot be distinguished from programs outside MPS"
            );
            node.unseen.push(Unseen::Other(hidden));
        }
        node.devices[nth].outside_mps = found;
    }
}

/// Returns the processes that nobody accounts for and that are no MPS programs: the servers of an unmanaged daemon are
/// not suspects. One that `/proc` does not show is `None`.
fn find_suspects(
    host: &Host,
    node: &Node,
    table: &ProcessTable,
    device: &Device,
) -> Vec<(Pid, Option<Process>)> {
    device
        .processes_outside_mps()
        .into_iter()
        .map(|pid| {
            let process = table.get(pid).cloned();
            (pid, process.or_else(|| host.find_process(pid)))
        })
        .filter(|(_, process)| {
            !process
                .as_ref()
                .is_some_and(|process| is_mps(node, table, process))
        })
        .collect()
}

/// True for a daemon, a server of one, and a server without one. Any program can have their names; but a daemon is
/// recorded or shown as unmanaged, and so is what pretends to be one.
fn is_mps(node: &Node, table: &ProcessTable, process: &Process) -> bool {
    let is_of_daemon = is_daemon(process) || table.get(process.parent).is_some_and(is_daemon);
    let mut strays = node
        .devices
        .iter()
        .flat_map(|device| &device.strays)
        .map(|stray| stray.server.pid);
    let mut unmanaged = node.unmanaged.iter().map(|unmanaged| unmanaged.pid);
    MpsProgram::is_mps_process(process)
        && (is_of_daemon
            || strays.any(|pid| pid == process.pid)
            || unmanaged.any(|pid| pid == process.pid))
}

fn read_outside_mps(
    host: &Host,
    node: &Node,
    device: &Device,
    process: &Process,
    usage: Option<&Usage>,
) -> OutsideMps {
    let served = device.serving_daemon();
    let has_unmanaged = node
        .unmanaged
        .iter()
        .any(|daemon| daemon.serves_device(&device.name));
    OutsideMps {
        pid: process.pid,
        user: process.owner(),
        command: process.command_line(),
        workload: process.find_workload(),
        unit: Holder::from_process(process)
            .unit
            .filter(|unit| is_service(unit)),
        is_main: is_main(host, process),
        memory: usage.and_then(|usage| usage.memory),
        gpus: usage
            .into_iter()
            .flat_map(|usage| &usage.gpus)
            .filter_map(|gpu| gpu.of_device(&device.joint_gpus))
            .collect(),
        age: process.age(),
        is_served: served.is_some() || has_unmanaged,
        cause: match served {
            Some(served) => OutsideCause::find(host, node, served, process),
            None if has_unmanaged => OutsideCause::UnmanagedDaemon,
            None if node.may_be_served(&device.uuid) => OutsideCause::MayBeServed,
            None => OutsideCause::NoDaemon,
        },
    }
}

/// The process that starts services.
const INIT_PID: Pid = Pid(1);

/// True if init is the parent of this process, and of no other one in its unit: one that was left by its parent, such as a
/// job of cron, has init as its parent as well.
fn is_main(host: &Host, process: &Process) -> bool {
    if process.parent != INIT_PID {
        return false;
    }
    let Ok(table) = host.read_processes() else {
        return false;
    };
    let unit = Holder::from_process(process).unit;
    !table
        .children(INIT_PID)
        .filter(|other| other.pid != process.pid)
        .any(|other| Holder::from_process(other).unit == unit)
}

/// The time in which a server ends when its daemon has been killed.
const SERVER_EXIT_TIMEOUT: Duration = Duration::from_millis(200);

/// Finds the strays of the caller's run directory in the process table.
pub(super) fn find_strays(host: &Host, table: &ProcessTable, run_dir: &RunDir, node: &mut Node) {
    let until = Instant::now() + SERVER_EXIT_TIMEOUT;
    for server in table.iter() {
        let has_daemon = || table.get(server.parent).is_some_and(is_daemon);
        if MpsProgram::from_process(server) != Some(MpsProgram::Server) || has_daemon() {
            continue;
        }
        let mut devices = node.devices.iter_mut();
        let Some(device) = devices.find(|device| {
            device.exists() && uses_pipe_dir(server, &run_dir.pipe_dir(&device.uuid))
        }) else {
            continue;
        };
        // Any user can give a process this name and directory. A real stray has a context.
        let has_context = match &device.processes {
            Some(processes) => processes.contains_pid(server.pid),
            None => server.owner() == Some(caller()),
        };
        // It may have exited since the table was read, or be about to.
        let has_ended = || match host.open_process(server.pid, server.started) {
            Ok(Some(held)) => held.wait_for_exit_until(until),
            Ok(None) => true,
            Err(_) => false,
        };
        if has_context && !has_ended() {
            device.strays.push(Stray {
                clients: orphaned_clients(device),
                server: ServerProcess::from_process(server),
                started: server.started,
            });
        }
    }
}

/// Returns the clients of a device that do not belong to the daemon that serves it now.
fn orphaned_clients(device: &Device) -> Option<Vec<Pid>> {
    let mut pids: Vec<Pid> = device
        .processes
        .as_ref()?
        .clients
        .iter()
        .map(|usage| usage.pid)
        .collect();
    if let Some(served) = device.serving_daemon() {
        if !served.clients.are_known() {
            return None;
        }
        pids.retain(|&pid| !served.clients.contains_pid(pid));
    }
    Some(pids)
}
