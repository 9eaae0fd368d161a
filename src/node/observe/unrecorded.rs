//! Finds the daemons of mig-mps that no record names: theirs was lost, damaged, or not finished.

use std::path::{Path, PathBuf};

use super::records::served;
use super::unmanaged::has_own_root;
use crate::host::{Account, Environment, MpsPrograms, Process, ProcessTable};
use crate::mps::{Daemon, is_daemon, servers_of};
use crate::node::{DaemonState, Node, Served, ServerProcess};
use crate::settings::Serve;
use crate::state::{DaemonId, RunDir};

/// Names the running daemons in the records that name none of this boot, and adds a lost record for each daemon whose
/// device has none. A change in progress records its daemons itself.
pub(super) fn find(environment: &Environment, table: &ProcessTable, node: &mut Node) {
    if node.is_changing() {
        return;
    }
    let run_dirs = RunDir::all(environment);
    for process in table.iter().filter(|process| is_daemon(process)) {
        if is_recorded(node, process) || !has_own_root(&environment.host, process) {
            continue;
        }
        let Some((run_dir, uuid)) = device_of(process, &run_dirs) else {
            continue;
        };
        let boot_id = node.boot_id.clone();
        let is_its =
            |served: &&mut Served| served.run_dir == *run_dir && served.record.uuid == uuid;
        match node.served.iter_mut().find(is_its) {
            Some(served) => {
                let record = &mut served.record;
                let is_named = record.daemon.is_some() && record.boot_id == boot_id;
                if !is_named && may_serve(process, record.settings.serve.as_ref(), run_dir) {
                    record.daemon = Some(DaemonId::of(process, &environment.host));
                    record.boot_id = boot_id;
                }
            }
            None if process.owner() == run_dir.owner() => {
                add_lost(environment, table, process, (run_dir, &uuid), node);
            }
            None => {}
        }
    }
}

/// True if a record of this boot names the process.
fn is_recorded(node: &Node, process: &Process) -> bool {
    let of_this_boot = node
        .served
        .iter()
        .filter(|served| served.record.boot_id == node.boot_id);
    let mut recorded = of_this_boot.filter_map(|served| served.record.daemon);
    recorded.any(|daemon| daemon.is(process))
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

/// True if the process has the user of a daemon with this setting: others may claim the directory.
fn may_serve(process: &Process, serve: Option<&Serve>, run_dir: &RunDir) -> bool {
    let owner = match serve {
        Some(Serve::User(name)) => Account::named(name).ok().flatten().map(|user| user.uid),
        _ => run_dir.owner(),
    };
    owner.is_some() && process.owner() == owner
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
    let mut lost = served(record, false, run_dir);
    lost.state = if daemon.has_socket() {
        DaemonState::Hidden
    } else {
        DaemonState::Orphan
    };
    lost.servers = servers_of(table, process).map(ServerProcess::of).collect();
    node.lost_records.push(lost);
    node.hidden.push(missing.clone());
    node.unreadable.push((run_dir.clone(), missing));
}
