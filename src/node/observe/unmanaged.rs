//! Finds MPS daemons that mig-mps did not start, and its own that no record names: theirs was lost, damaged, or not
//! finished.

use std::path::{Path, PathBuf};

use crate::config::DEFAULT_PIPE_DIRECTORIES;
use crate::host::{
    Environment, Host, MpsPrograms, Pid, Process, ProcessTable, Supervisor, stat_untrusted,
};
use crate::mps::{Daemon, MpsProgram, is_daemon, servers_of};
use crate::node::{DaemonState, Device, Node, Served, ServerProcess, Unmanaged, Unseen, Variable};
use crate::state::{DeviceKey, ProcessId, RunDir};

/// Finds unmanaged daemons, and servers without a daemon, in the process table.
pub(super) fn find_daemons(environment: &Environment, table: &ProcessTable, node: &mut Node) {
    let host = &environment.host;
    let mut unmanaged = Vec::new();
    for process in table.iter() {
        let Some(program) = MpsProgram::from_process(process) else {
            continue;
        };
        let is_shown = match program {
            // A control session is no daemon.
            MpsProgram::Control => is_daemon(process),
            MpsProgram::Server => !table.get(process.parent).is_some_and(is_daemon),
        };
        let mut strays = node.devices.iter().flat_map(|device| &device.strays);
        let is_recorded = node
            .served()
            .any(|served| record_names_process(served, process));
        let is_managed = is_recorded || strays.any(|stray| stray.server.pid == process.pid);
        if !is_shown || is_managed {
            continue;
        }
        let found = read_unmanaged(host, table, node, program, process);
        let may_be_managed = match &found.pipe_directory {
            Variable::Is(pipe) => {
                let pipe = Path::new(pipe);
                is_in_unread_run_dir(node, pipe) || may_be_started(environment, process, pipe)
            }
            Variable::Hidden => {
                node.unseen_daemons().is_some() || may_be_recorded(environment, process)
            }
            Variable::Unset => false,
        };
        // If it has exited meanwhile, a `down` may have removed its record first.
        if !may_be_managed && still_runs(host, process) {
            unmanaged.push(found);
        }
    }
    node.unmanaged = unmanaged;
}

/// True if a record names the process, or the daemon whose server it is.
fn record_names_process(served: &Served, process: &Process) -> bool {
    served.record.daemon.is_some_and(|daemon| {
        let itself = daemon.pid == process.pid && daemon.start_time == process.started;
        itself || daemon.pid == process.parent
    })
}

/// True if the process has not exited since the table was read.
fn still_runs(host: &Host, process: &Process) -> bool {
    let now = host.find_process(process.pid);
    now.is_some_and(|now| now.started == process.started)
}

/// True if the pipe directory lies in a run directory that cannot be read.
fn is_in_unread_run_dir(node: &Node, pipe: &Path) -> bool {
    node.unseen.iter().any(|unseen| match unseen {
        Unseen::RunDir { run_dir, .. } => pipe.starts_with(run_dir.path()),
        _ => false,
    })
}

/// True if the process uses the pipe directory of a device whose record names it by now, or names no daemon while a
/// change is in progress: its start has not recorded it yet. Any process can claim the directory of a device that
/// another one serves.
fn may_be_started(environment: &Environment, process: &Process, pipe: &Path) -> bool {
    let run_dirs = RunDir::all(environment);
    let Some((run_dir, uuid)) = device_at(pipe, &run_dirs) else {
        return false;
    };
    let record = run_dir.load_record(uuid).ok().flatten();
    record.is_some_and(|record| match record.daemon {
        Some(daemon) => {
            let is_recorded = daemon.matches_process(process) || daemon.pid == process.parent;
            is_recorded || daemon.is_hidden(&environment.host)
        }
        None => run_dir.has_journal(),
    })
}

/// True if a process with a hidden environment is recorded by now, or may be a daemon whose start has not recorded it
/// yet.
fn may_be_recorded(environment: &Environment, process: &Process) -> bool {
    RunDir::all(environment).iter().any(|run_dir| {
        let (records, _) = run_dir.load_records().unwrap_or_default();
        records.iter().map(|record| record.daemon).any(|daemon| {
            daemon.is_none_or(|daemon| {
                daemon.matches_process(process) || daemon.pid == process.parent
            })
        })
    })
}

fn read_unmanaged(
    host: &Host,
    table: &ProcessTable,
    node: &Node,
    program: MpsProgram,
    process: &Process,
) -> Unmanaged {
    let environ = process.environ();
    let variable = |name| Variable::from_environ(environ.as_ref(), name);
    let pipe_directory = variable("CUDA_MPS_PIPE_DIRECTORY");
    let visible = variable("CUDA_VISIBLE_DEVICES");
    let servers: Vec<ServerProcess> = match program {
        MpsProgram::Control => servers_of(table, process)
            .map(ServerProcess::from_process)
            .collect(),
        MpsProgram::Server => Vec::new(),
    };
    let pids: Vec<Pid> = std::iter::once(process.pid)
        .chain(servers.iter().map(|server| server.pid))
        .collect();
    let is_orphan = environ.is_some() && {
        let path = pipe_directory
            .value()
            .unwrap_or(DEFAULT_PIPE_DIRECTORIES[0]);
        // A container has another root, in which the directory may exist.
        has_own_root(host, process) && matches!(stat_untrusted(Path::new(path)), Ok(None))
    };
    let supervisor = process.find_supervisor();
    Unmanaged {
        has_company: supervisor
            .as_ref()
            .is_some_and(|supervisor| has_company(host, supervisor, process, node)),
        supervisor,
        is_elsewhere: environ.is_some() && !has_own_root(host, process),
        program,
        pid: process.pid,
        user: process.owner(),
        command: process.command_line(),
        age: process.age(),
        is_orphan,
        devices: devices_of_daemon(node, &visible, &pids),
        pipe_directory,
        visible,
        servers,
    }
}

/// True if a service runs something else than daemons that nobody manages, and the shell that started this one.
fn has_company(host: &Host, supervisor: &Supervisor, daemon: &Process, node: &Node) -> bool {
    if !matches!(
        supervisor,
        Supervisor::Service(_) | Supervisor::UserService(..)
    ) {
        return false;
    }
    let Ok(table) = host.read_processes() else {
        return true;
    };
    let parents = std::iter::successors(table.get(daemon.parent), |one| table.get(one.parent));
    let shells = parents.take_while(|one| SHELLS.contains(&one.name.as_str()));
    let shells: Vec<Pid> = shells.take(MAX_SHELLS).map(|one| one.pid).collect();
    table.iter().any(|other| {
        let is_managed = node
            .served()
            .any(|served| record_names_process(served, other));
        let is_other =
            is_managed || !MpsProgram::is_mps_process(other) && !shells.contains(&other.pid);
        is_other && other.find_supervisor().as_ref() == Some(supervisor)
    })
}

/// The programs that start a daemon for a service.
const SHELLS: [&str; 4] = ["sh", "bash", "dash", "ksh"];

/// The most shells between a service and its daemon.
const MAX_SHELLS: usize = 8;

/// True if the process has the same root directory as this one.
pub(super) fn has_own_root(host: &Host, process: &Process) -> bool {
    let own = host.find_process(Pid(std::process::id()));
    let root = process.root_directory();
    root.is_some() && root == own.and_then(|own| own.root_directory())
}

/// True if a path leads the process to the same directory as this one.
fn has_same_directory(host: &Host, process: &Process, path: &Path) -> bool {
    let own = host.find_process(Pid(std::process::id()));
    let seen = process.directory_at(path);
    seen.is_some() && seen == own.and_then(|own| own.directory_at(path))
}

/// Returns the devices that are visible to a daemon, and those on which NVML lists its processes.
fn devices_of_daemon(node: &Node, visible: &Variable, pids: &[Pid]) -> Vec<String> {
    let is_visible = |device: &Device| match visible {
        Variable::Hidden => false,
        Variable::Unset => true,
        Variable::Is(list) => list.split(',').map(str::trim).any(|word| {
            let (indices, uuids) = (device.gpu_indices(), device.driver_uuids());
            let is_index = |word: &str| word.parse().is_ok_and(|index| indices.contains(&index));
            let begins_uuid = |word: &str| uuids.iter().any(|uuid| uuid.starts_with(word));
            device.part.is_none() && is_index(word)
                || word.len() > "MIG-".len() && begins_uuid(word)
        }),
    };
    let is_listed = |device: &Device| {
        let processes = device.processes.as_ref();
        processes.is_some_and(|processes| pids.iter().any(|&pid| processes.contains_pid(pid)))
    };
    node.existing_devices()
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
    for process in table
        .iter()
        .filter(|process| MpsProgram::is_mps_process(process))
    {
        // The records first, since most processes are recorded: no file of a process is read for that.
        let is_recorded = node.served().any(|served| {
            served.record.boot_id == node.boot_id && record_names_process(served, process)
        });
        if is_recorded || !is_daemon(process) {
            continue;
        }
        let pipe = process.environment_bytes("CUDA_MPS_PIPE_DIRECTORY");
        let pipe = PathBuf::from(pipe.unwrap_or_default());
        let Some((run_dir, uuid)) = device_at(&pipe, &run_dirs) else {
            continue;
        };
        // A container has other directories by the same names, and a sandbox of systemd has the same ones.
        let host = &environment.host;
        if !has_own_root(host, process) && !has_same_directory(host, process, &pipe) {
            continue;
        }
        // Others may claim the directory.
        let owner = run_dir.owner();
        if owner.is_none() || process.owner() != owner {
            continue;
        }
        let Some(served) = node
            .devices
            .iter_mut()
            .filter_map(|device| device.served.as_mut())
            .find(|served| served.run_dir == *run_dir && served.record.uuid == uuid)
        else {
            add_lost_record(environment, table, process, (run_dir, uuid), node);
            continue;
        };
        let record = &mut served.record;
        if record.daemon.is_none() || record.boot_id != node.boot_id {
            record.daemon = Some(ProcessId::from_process(process, &environment.host));
            record.boot_id.clone_from(&node.boot_id);
        }
    }
}

/// Returns the run directory and the UUID of the device with this pipe directory.
fn device_at<'a>(pipe: &'a Path, run_dirs: &'a [RunDir]) -> Option<(&'a RunDir, &'a str)> {
    let uuid = pipe.parent()?.file_name()?.to_str()?;
    let run_dir = run_dirs
        .iter()
        .find(|run_dir| run_dir.pipe_dir(uuid) == pipe)?;
    Some((run_dir, uuid))
}

/// Adds the record that a daemon has lost.
fn add_lost_record(
    environment: &Environment,
    table: &ProcessTable,
    process: &Process,
    (run_dir, uuid): (&RunDir, &str),
    node: &mut Node,
) {
    let host = &environment.host;
    // A `down` may have ended it meanwhile, and removed its record before.
    if !still_runs(host, process) {
        return;
    }
    let is_its = |lost: &Served| lost.run_dir == *run_dir && lost.record.uuid == uuid;
    // Of one whose record cannot be read, the directory is known already.
    let known = node.lost_records.iter().position(is_its);
    let record = match known {
        Some(nth) => Some(node.lost_records[nth].record.clone()),
        None => run_dir.lost_record(uuid, &node.boot_id),
    };
    let Some(mut record) = record else {
        return;
    };
    record.daemon = Some(ProcessId::from_process(process, host));
    if let Some(key) = joint_key_of(process, uuid) {
        let gpus: Vec<u32> = node.gpus_with_key(&key).map(|gpu| gpu.index).collect();
        // They stand in the order of the key, so that none may be left out.
        if gpus.len() == key.gpus().len() {
            record.gpu = gpus.first().copied();
            record.joint_gpus = gpus;
        }
        record.key = key;
    }
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
    lost.servers = servers_of(table, process)
        .map(ServerProcess::from_process)
        .collect();
    if let Some(nth) = known {
        node.lost_records[nth] = lost;
        return;
    }
    node.lost_records.push(lost);
    node.unseen.push(Unseen::Record {
        run_dir: run_dir.clone(),
        why: missing,
    });
}

/// Returns the GPUs of the joint device with this UUID, as the environment of its daemon lists them; `None` for another device.
fn joint_key_of(process: &Process, uuid: &str) -> Option<DeviceKey> {
    let listed = process.environment_bytes("CUDA_VISIBLE_DEVICES")?;
    let listed = listed.into_string().ok()?;
    let key = DeviceKey::for_joint_device(listed.split(',').map(str::to_owned).collect());
    (key.joint_uuid() == uuid).then_some(key)
}
