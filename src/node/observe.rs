use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::{Client, DaemonId, Gpu, Life, Node, RunDir, Served, ServerProcess};
use crate::environment::{Environment, MpsPrograms};
use crate::host::{Host, Pid, ProcessTable};
use crate::mps::{Daemon, Glance, Liveness, MpsError, ServerState};
use crate::nvml::{Code, Nvml, NvmlError, Processes};

/// How closely to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// GPUs and instances, and whether daemons live: opens no control session.
    Passive,
    /// Also servers, clients and who computes on each device: at most one control session per daemon.
    Close,
}

/// For how long a reader waits for somebody else's control session before it calls the daemon busy.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Looks at the node.
///
/// # Errors
/// [`NvmlError`]: without NVML there is nothing to show.
pub fn observe(environment: &Environment, look: Look) -> Result<Node, NvmlError> {
    let library = environment.nvml_library.clone();
    // The hardware answers while the daemons are asked. The thread ends by NVML's own limits.
    let hardware = std::thread::spawn(move || read_hardware(library.as_deref(), look));
    let mut node = Node {
        boot_id: environment.host.boot_id().unwrap_or_default(),
        ..Node::default()
    };
    read_daemons(environment, look, &mut node);
    let hardware = hardware
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    node.driver = hardware.driver;
    node.gpus = hardware.gpus;
    node.hidden.extend(hardware.hidden);
    node.processes = hardware.processes;
    join(&mut node);
    Ok(node)
}

#[derive(Default)]
struct Hardware {
    driver: String,
    gpus: Vec<Gpu>,
    processes: BTreeMap<String, Processes>,
    hidden: Vec<String>,
}

fn read_hardware(library: Option<&Path>, look: Look) -> Result<Hardware, NvmlError> {
    let nvml = Nvml::open(library)?;
    let (driver, count) =
        nvml.supervise(|session| Ok((session.driver_version()?, session.gpu_count()?)))?;
    let mut hardware = Hardware {
        driver,
        ..Hardware::default()
    };
    for index in 0..count {
        let (gpu, processes, hidden) = nvml.supervise(move |session| {
            let mut hidden = Vec::new();
            let mut gpu = Gpu::new(session.read_gpu(index)?);
            if gpu.in_mig_mode() {
                match session.read_instances(&gpu.uuid, &gpu.profiles) {
                    Ok(instances) => gpu.instances = instances,
                    Err(error) if error.code() == Some(Code::NO_PERMISSION) => {
                        gpu.hidden = Some(error.to_string());
                    }
                    Err(error) => return Err(error),
                }
            }
            let mut processes = BTreeMap::new();
            if look == Look::Close {
                for device in gpu.devices() {
                    match session.read_processes(&device.uuid) {
                        Ok(read) => drop(processes.insert(device.uuid, read)),
                        Err(error) => hidden.push(format!("processes of {}: {error}", device.uuid)),
                    }
                }
            }
            Ok((gpu, processes, hidden))
        })?;
        hardware.gpus.push(gpu);
        hardware.processes.extend(processes);
        hardware.hidden.extend(hidden);
    }
    Ok(hardware)
}

fn read_daemons(environment: &Environment, look: Look, node: &mut Node) {
    let table = environment.host.processes().unwrap_or_default();
    let programs = environment.mps_programs().ok();
    for path in environment.run_dirs() {
        let run_dir = RunDir::at(&path);
        let (records, problems) = run_dir.records();
        node.hidden.extend(problems);
        match run_dir.node() {
            Ok(file) if file.boot_id == node.boot_id => node.created.extend(file.created),
            Ok(_) => {}
            Err(error) => node.hidden.push(format!("{}: {error}", path.display())),
        }
        for record in records {
            // The system's record of a name or device wins; its own order comes first.
            let known = node
                .served
                .iter()
                .any(|served| served.record.name == record.name || served.record.key == record.key);
            if known {
                node.hidden.push(format!(
                    "{} also has a device \"{}\": the one in {} is shown",
                    path.display(),
                    record.name,
                    node.served[0].run_dir.path().display()
                ));
                continue;
            }
            node.served.push(Served {
                run_dir: run_dir.clone(),
                device_is_there: false,
                life: Life::Dead,
                servers: Vec::new(),
                clients: Vec::new(),
                percentage: None,
                record,
            });
        }
    }
    node.served
        .sort_by_key(|served| natural(&served.record.name));
    let boot_id = node.boot_id.clone();
    // Control sessions are short-lived processes with limits of their own.
    std::thread::scope(|scope| {
        for served in &mut node.served {
            let (table, programs, boot_id) = (&table, programs.as_ref(), boot_id.as_str());
            let host = &environment.host;
            if look == Look::Close {
                scope.spawn(move || look_at(served, host, table, programs, boot_id, look));
            } else {
                look_at(served, host, table, programs, boot_id, look);
            }
        }
    });
}

/// Finds out how one recorded daemon is.
fn look_at(
    served: &mut Served,
    host: &Host,
    table: &ProcessTable,
    programs: Option<&MpsPrograms>,
    boot_id: &str,
    look: Look,
) {
    let record = &served.record;
    let pipe = served.run_dir.pipe_dir(&record.uuid);
    let daemon = Daemon::new(
        programs.cloned().unwrap_or_default(),
        pipe,
        std::path::PathBuf::new(),
    );
    let pid = match daemon.liveness() {
        Liveness::Held(pid) => pid,
        Liveness::HeldUnseen | Liveness::Hidden => {
            served.life = Life::Hidden;
            return;
        }
        Liveness::Dead => {
            let recorded = record.daemon.filter(|_| record.boot_id == boot_id);
            let lives = |id: &DaemonId| {
                host.process(id.pid)
                    .is_some_and(|process| process.started == id.start_time)
            };
            if recorded.as_ref().is_some_and(lives) {
                served.life = Life::Orphan;
            }
            return;
        }
    };
    let same = record.boot_id == boot_id
        && match record.daemon {
            Some(DaemonId {
                pid: recorded,
                start_time,
            }) => {
                // Asked anew: the table may be older than the daemon.
                recorded == pid
                    && host
                        .process(pid)
                        .is_none_or(|process| process.started == start_time)
            }
            None => true,
        };
    if !same {
        // Somebody holds the lock of a lock file that a dead daemon left behind.
        return;
    }
    served.life = match (record.finished, look) {
        (false, _) => Life::Starting,
        (true, Look::Passive) => Life::Ready,
        (true, Look::Close) => Life::Hidden,
    };
    if look == Look::Passive {
        return;
    }
    let children: Vec<Pid> = table.children(pid).map(|child| child.pid).collect();
    let glance = match programs {
        Some(_) => daemon.glance(&children, PATIENCE),
        None => return,
    };
    match glance {
        Ok(glance) => tell(served, host, &glance),
        Err(MpsError::Busy { .. }) => {
            served.life = Life::Busy;
            served.servers = children.iter().map(|&pid| server(host, pid)).collect();
        }
        Err(MpsError::NoDaemon(_)) => served.life = Life::Dead,
        Err(_) => {}
    }
}

fn tell(served: &mut Served, host: &Host, glance: &Glance) {
    let states: Vec<_> = glance.servers.iter().map(|server| server.state).collect();
    if served.record.finished {
        served.life = if states.contains(&Some(ServerState::Fault)) {
            Life::Fault
        } else if states.contains(&Some(ServerState::Active)) {
            Life::Ready
        } else if states.is_empty() {
            Life::NoServerYet
        } else {
            Life::Starting
        };
    }
    served.percentage = Some(glance.percentage);
    served.servers = glance
        .servers
        .iter()
        .map(|seen| server(host, seen.pid))
        .collect();
    served.clients = glance
        .servers
        .iter()
        .flat_map(|server| &server.clients)
        .map(|&pid| {
            let process = host.process(pid);
            Client {
                pid,
                user: process.as_ref().and_then(crate::host::Process::owner),
                command: process.as_ref().map(crate::host::Process::command),
                memory: None,
                age: process.as_ref().and_then(crate::host::Process::age),
            }
        })
        .collect();
}

fn server(host: &Host, pid: Pid) -> ServerProcess {
    ServerProcess {
        pid,
        user: host.process(pid).and_then(|process| process.owner()),
    }
}

/// Joins what the daemons say with what the hardware says.
fn join(node: &mut Node) {
    let devices: Vec<_> = node
        .devices()
        .map(|device| (device.key, device.uuid))
        .collect();
    for served in &mut node.served {
        let record = &served.record;
        served.device_is_there = devices
            .iter()
            .any(|(key, uuid)| *key == record.key && *uuid == record.uuid);
        let Some(processes) = node.processes.get(&record.uuid) else {
            continue;
        };
        for client in &mut served.clients {
            let usage = processes.compute.iter().chain(&processes.clients);
            client.memory = usage
                .filter(|usage| usage.pid == client.pid.0)
                .find_map(|usage| usage.memory);
        }
    }
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
