//! Finds MPS daemons that mig-mps did not start, and its own that no record names: theirs was lost, damaged, or not
//! finished.

use std::path::{Path, PathBuf};

use super::super::served::DEFAULT_PIPE_DIRECTORIES;
use crate::host::{Environment, Host, MpsPrograms, Pid, Process, ProcessTable, claimed};
use crate::mps::{Daemon, MpsProgram, is_daemon, servers_of};
use crate::node::{DaemonState, Device, Node, Served, ServerProcess, Unmanaged, Unseen, Variable};
use crate::state::{DaemonId, RunDir};

/// Finds unmanaged daemons, and servers without a daemon, in the process table.
pub(super) fn find(environment: &Environment, table: &ProcessTable, node: &mut Node) {
    let host = &environment.host;
    let mut unmanaged = Vec::new();
    for process in table.iter() {
        let Some(program) = MpsProgram::of(process) else {
            continue;
        };
        let is_shown = match program {
            // A control session is no daemon.
            MpsProgram::Control => is_daemon(process),
            MpsProgram::Server => !table.get(process.parent).is_some_and(is_daemon),
        };
        let mut strays = node.devices.iter().flat_map(|device| &device.strays);
        let is_managed =
            is_recorded(node, process) || strays.any(|stray| stray.server.pid == process.pid);
        if !is_shown || is_managed {
            continue;
        }
        let found = read(host, table, node, program, process);
        let may_be_managed = match &found.pipe_directory {
            Variable::Is(pipe) => {
                let pipe = Path::new(pipe);
                is_unseen(node, pipe) || may_be_started(environment, process, pipe)
            }
            Variable::Hidden => {
                node.unseen_daemons().is_some() || may_be_recorded(environment, process)
            }
            Variable::Unset => false,
        };
        // If it has exited meanwhile, a `down` may have removed its record first.
        let still_runs = host
            .process(process.pid)
            .is_some_and(|now| now.started == process.started);
        if !may_be_managed && still_runs {
            unmanaged.push(found);
        }
    }
    node.unmanaged = unmanaged;
}

/// True if a record names the process, or the daemon whose server it is.
fn is_recorded(node: &Node, process: &Process) -> bool {
    let mut recorded = node.served().filter_map(|served| served.record.daemon);
    recorded.any(|daemon| {
        let itself = daemon.pid == process.pid && daemon.start_time == process.started;
        itself || daemon.pid == process.parent
    })
}

/// True if the pipe directory lies in a run directory that cannot be read.
fn is_unseen(node: &Node, pipe: &Path) -> bool {
    node.unseen.iter().any(|unseen| match unseen {
        Unseen::RunDir { run_dir, .. } => pipe.starts_with(run_dir.path()),
        _ => false,
    })
}

/// True if the process uses the pipe directory of a device whose record names it by now, or names no daemon while a
/// change is in progress: its start has not recorded it yet. Any process can claim the directory of a device that
/// another one serves.
fn may_be_started(environment: &Environment, process: &Process, pipe: &Path) -> bool {
    let device = || pipe.parent()?.file_name()?.to_str();
    let Some(uuid) = device() else { return false };
    RunDir::all(environment).iter().any(|run_dir| {
        if run_dir.pipe_dir(uuid) != pipe {
            return false;
        }
        let record = run_dir.record(uuid).ok().flatten();
        record.is_some_and(|record| match record.daemon {
            Some(daemon) => {
                let is_recorded = daemon.is(process) || daemon.pid == process.parent;
                is_recorded || daemon.is_hidden(&environment.host)
            }
            None => run_dir.has_journal(),
        })
    })
}

/// True if a process with a hidden environment is recorded by now, or may be a daemon whose start has not recorded it
/// yet.
fn may_be_recorded(environment: &Environment, process: &Process) -> bool {
    RunDir::all(environment).iter().any(|run_dir| {
        let (records, _) = run_dir.records();
        let mut daemons = records.iter().map(|record| record.daemon);
        daemons.any(|daemon| {
            daemon.is_none_or(|daemon| daemon.is(process) || daemon.pid == process.parent)
        })
    })
}

fn read(
    host: &Host,
    table: &ProcessTable,
    node: &Node,
    program: MpsProgram,
    process: &Process,
) -> Unmanaged {
    let environ = process.environ();
    let variable = |name| Variable::of(environ.as_ref(), name);
    let pipe_directory = variable("CUDA_MPS_PIPE_DIRECTORY");
    let visible = variable("CUDA_VISIBLE_DEVICES");
    let servers: Vec<ServerProcess> = match program {
        MpsProgram::Control => servers_of(table, process).map(ServerProcess::of).collect(),
        MpsProgram::Server => Vec::new(),
    };
    let pids: Vec<u32> = std::iter::once(process.pid.0)
        .chain(servers.iter().map(|server| server.pid.0))
        .collect();
    let is_orphan = environ.is_some() && {
        let path = pipe_directory
            .value()
            .unwrap_or(DEFAULT_PIPE_DIRECTORIES[0]);
        // A container has another root, in which the directory may exist.
        has_own_root(host, process) && matches!(claimed(Path::new(path)), Ok(None))
    };
    Unmanaged {
        program,
        pid: process.pid,
        user: process.owner(),
        command: process.command(),
        age: process.age(),
        is_orphan,
        devices: devices(node, &visible, &pids),
        pipe_directory,
        visible,
        servers,
    }
}

/// True if the process has the same root directory as this one.
pub(super) fn has_own_root(host: &Host, process: &Process) -> bool {
    let own = host.process(Pid(std::process::id()));
    let root = process.root();
    root.is_some() && root == own.and_then(|own| own.root())
}

/// Returns the devices that are visible to a daemon, and those on which NVML lists its processes.
fn devices(node: &Node, visible: &Variable, pids: &[u32]) -> Vec<String> {
    let is_visible = |device: &Device| match visible {
        Variable::Hidden => false,
        Variable::Unset => true,
        Variable::Is(list) => list.split(',').map(str::trim).any(|word| {
            let by_index = device.part.is_none() && word.parse().ok() == device.gpu;
            by_index || word.len() > "MIG-".len() && device.uuid.starts_with(word)
        }),
    };
    let is_listed = |device: &Device| {
        let processes = device.processes.iter();
        let mut usages = processes.flat_map(|processes| &processes.compute);
        usages.any(|usage| pids.contains(&usage.pid))
    };
    node.present()
        .filter(|device| is_visible(device) || is_listed(device))
        .map(|device| device.name.clone())
        .collect()
}

/// Names the running daemons in the records that name none of this boot, and adds a lost record for each daemon whose
/// device has none. A change in progress records its daemons itself.
pub(super) fn find_unrecorded(environment: &Environment, table: &ProcessTable, node: &mut Node) {
    if node.is_changing() {
        return;
    }
    let run_dirs = RunDir::all(environment);
    for process in table.iter().filter(|process| MpsProgram::is_one(process)) {
        // The records first, since most processes are recorded: no file of a process is read for that.
        if has_record(node, process)
            || !is_daemon(process)
            || !has_own_root(&environment.host, process)
        {
            continue;
        }
        let Some((run_dir, uuid)) = device_of(process, &run_dirs) else {
            continue;
        };
        let boot_id = node.boot_id.clone();
        let owner = run_dir.owner();
        let is_owners = owner.is_some() && process.owner() == owner;
        let is_its =
            |served: &&mut Served| served.run_dir == *run_dir && served.record.uuid == uuid;
        let mut served = node
            .devices
            .iter_mut()
            .filter_map(|device| device.served.as_mut());
        match served.find(is_its) {
            Some(served) => {
                let record = &mut served.record;
                let is_named = record.daemon.is_some() && record.boot_id == boot_id;
                // Others may claim the directory.
                if !is_named && is_owners {
                    record.daemon = Some(DaemonId::of(process, &environment.host));
                    record.boot_id = boot_id;
                }
            }
            None if is_owners => {
                add_lost(environment, table, process, (run_dir, &uuid), node);
            }
            None => {}
        }
    }
}

/// True if a record of this boot names the process, or the daemon whose server it is.
fn has_record(node: &Node, process: &Process) -> bool {
    let of_this_boot = node
        .served()
        .filter(|served| served.record.boot_id == node.boot_id);
    let mut recorded = of_this_boot.filter_map(|served| served.record.daemon);
    recorded.any(|daemon| {
        let itself = daemon.pid == process.pid && daemon.start_time == process.started;
        itself || daemon.pid == process.parent
    })
}

/// Returns the run directory and the UUID of the device whose pipe directory a process serves in.
fn device_of<'a>(process: &Process, run_dirs: &'a [RunDir]) -> Option<(&'a RunDir, String)> {
    let pipe = PathBuf::from(process.environment_bytes("CUDA_MPS_PIPE_DIRECTORY")?);
    let uuid = pipe.parent().and_then(Path::file_name)?.to_str()?;
    let run_dir = run_dirs
        .iter()
        .find(|run_dir| run_dir.pipe_dir(uuid) == pipe)?;
    Some((run_dir, uuid.to_owned()))
}

/// Adds the record that a daemon has lost.
fn add_lost(
    environment: &Environment,
    table: &ProcessTable,
    process: &Process,
    (run_dir, uuid): (&RunDir, &str),
    node: &mut Node,
) {
    let host = &environment.host;
    let now = host.process(process.pid);
    // A `down` may have ended it meanwhile, and removed its record before.
    let still_runs = now.is_some_and(|now| now.started == process.started);
    let is_known = |lost: &Served| lost.run_dir == *run_dir && lost.record.uuid == uuid;
    if !still_runs || node.lost_records.iter().any(is_known) {
        return;
    }
    let Some(mut record) = run_dir.lost_record(uuid, &node.boot_id) else {
        return;
    };
    record.daemon = Some(DaemonId::of(process, host));
    let missing = format!(
        "{}: it is missing, and the daemon {} lives",
        run_dir.record_path(uuid).display(),
        process.pid
    );
    let daemon = Daemon::new(
        MpsPrograms::default(),
        node.control_program(),
        run_dir.pipe_dir(uuid),
        PathBuf::new(),
    );
    let mut lost = Served::new(record, run_dir);
    lost.state = if daemon.has_socket() {
        DaemonState::Hidden
    } else {
        DaemonState::Orphan
    };
    lost.servers = servers_of(table, process).map(ServerProcess::of).collect();
    node.lost_records.push(lost);
    node.unseen.push(Unseen::Record {
        run_dir: run_dir.clone(),
        why: missing,
    });
}
