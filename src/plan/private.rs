//! Plans the daemon that serves one device for programs of the caller alone.

use super::refusal::check_driver_version;
use super::restart::place_on;
use super::{Action, Place, Plan, Reason, Refusal, Start, StartedBy, UnmanagedDaemon};
use crate::failure::Problem;
use crate::host::{Pid, StartTime, caller, format_gpus};
use crate::node::{Device, Node, ServerProcess};
use crate::settings::{Serve, Settings};
use crate::state::RunDir;

/// The name of a private device of several GPUs.
const PRIVATE_JOINT_NAME: &str = "joint";

/// Plans to start the daemon of the device with this UUID, or of all GPUs with these UUIDs as one device.
///
/// # Errors
/// A device is gone, or has a daemon that can be seen: programs of two daemons take turns.
pub fn private_daemon(node: &Node, run_dir: &RunDir, uuids: &[String]) -> Result<Plan, Refusal> {
    check_driver_version(node)?;
    let mut gpus = Vec::new();
    let mut placed = None;
    for uuid in uuids {
        let device = node.device_with_uuid(uuid);
        let found = device.and_then(|device| {
            let gpu = node.gpu_with_uuid(&device.key.gpu)?;
            let place = match device.key.instance {
                Some(key) => place_on(gpu, key)?,
                None => Place::Whole,
            };
            Some((device, gpu, place))
        });
        let Some((device, gpu, place)) = found else {
            let what = format!("the device {uuid} no longer exists");
            return Err(Problem::new(what, "run `mig-mps list` to see the devices").into());
        };
        if let Some(other) = UnmanagedDaemon::on_device(node, run_dir, device).first() {
            return Err(
                existing_daemon_problem(node, &format!("device {}", device.name), other).into(),
            );
        }
        gpus.push(gpu);
        placed = Some((device.clone(), place));
    }
    let (device, place) = match placed {
        Some(only) if gpus.len() == 1 => only,
        _ => (Device::from_gpus(&gpus), Place::Whole),
    };
    let name = if device.key.is_joint() {
        PRIVATE_JOINT_NAME.to_owned()
    } else {
        device.name
    };
    let start = Action::Start(Start {
        name,
        place,
        joint: device.joint_gpus,
        uuid: Some(device.uuid),
        settings: Settings {
            serve: Some(Serve::Own),
            ..Settings::default()
        },
        served_id: None,
        by_hand: Vec::new(),
        by: StartedBy::Up,
        beside: Vec::new(),
    });
    let mut plan = Plan::default();
    let steps = &mut plan.gpu_plan_mut(node, &device.key.gpu).steps;
    steps.push(start.with_reason(Reason::ASKED_FOR));
    Ok(plan.complete(node, run_dir))
}

/// Refuses a private daemon that runs beside an older one of a GPU of its device: each may have started before the other was
/// there to be seen.
///
/// # Errors
/// Another daemon has a server that started earlier. Both daemons judge so, and only one of them goes on.
pub fn check_only_daemon(node: &Node, run_dir: &RunDir) -> Result<(), Problem> {
    let own = node.devices.iter().find_map(|device| {
        let served = device.served.as_ref();
        Some((device, served.filter(|served| served.run_dir == *run_dir)?))
    });
    let Some((device, served)) = own else {
        return Ok(());
    };
    let Some(own_start) = first_start(&served.servers) else {
        return Ok(());
    };
    let is_older = |other: &&UnmanagedDaemon| {
        let seen = node.unmanaged.iter().find(|seen| seen.pid == other.pid);
        seen.and_then(|seen| first_start(&seen.servers))
            .is_some_and(|start| start < own_start)
    };
    let others = UnmanagedDaemon::on_device(node, run_dir, device);
    match others.iter().find(is_older) {
        Some(older) => {
            let name = if device.key.is_joint() {
                format!("one of {}", format_gpus(device.gpu_indices()))
            } else {
                format!("device {}", device.name)
            };
            Err(existing_daemon_problem(node, &name, older))
        }
        None => Ok(()),
    }
}

/// Returns the start of the first of these servers.
fn first_start(servers: &[ServerProcess]) -> Option<(StartTime, Pid)> {
    servers
        .iter()
        .filter_map(|server| Some((server.started?, server.pid)))
        .min()
}

/// The problem of a device's daemon. Its hint is for the caller, who can end no daemon of another user.
fn existing_daemon_problem(node: &Node, device: &str, daemon: &UnmanagedDaemon) -> Problem {
    let pid = daemon.pid;
    let user = daemon.user.as_deref().unwrap_or("?");
    let what = format!("{device} already has an MPS daemon: pid {pid} ({user})");
    let seen = node.unmanaged.iter().find(|seen| seen.pid == pid);
    let is_own = seen.is_some_and(|seen| seen.user == Some(caller()));
    let hint = if is_own && seen.is_some_and(|seen| seen.is_orphan) {
        format!(
            "run `kill {pid}` to end that daemon, whose directory was removed, so that no program can reach it"
        )
    } else if is_own && seen.is_some_and(|seen| seen.devices.len() > 1) {
        "run both programs in one job with --private --joint and the same CUDA_VISIBLE_DEVICES, or wait until the \
         programs of that daemon have exited; programs of two daemons are time-sliced on a device"
            .to_owned()
    } else if is_own {
        "run both programs in one job (with Slurm in one job step), or wait until the programs of that daemon have \
         exited; programs of two daemons are time-sliced on a device"
            .to_owned()
    } else {
        "use another device, or wait until the programs of that daemon have exited; users can share a device if root \
         starts its daemon with serve = \"all\""
            .to_owned()
    };
    Problem::new(what, hint)
}
