//! Plans `down`, and the end of servers that have outlived their daemons.

use super::daemons::{ailment, all_elsewhere, check_ours, for_its_owner, unreadable};
use super::layout::{is_made_by_us, outside_mps};
use super::{
    ASKED_FOR, Action, EndStray, GpuInstance, Obstacle, Plan, Purge, Refusal, Step, Stop, mig_mode,
};
use crate::geometry::SliceMap;
use crate::host::Pid;
use crate::mps::{Means, Patience};
use crate::node::{DaemonState, Gpu, Node, Served, Stray};
use crate::state::RunDir;

/// A request to take devices down.
#[derive(Clone, Debug)]
pub struct Down {
    /// The names of the devices; empty for all.
    pub devices: Vec<String>,
    /// End daemons that have clients, these many seconds after refusing new ones.
    pub force: Option<u32>,
    /// Also destroy the instances that mig-mps made.
    pub destroy_mig: bool,
    /// Also switch the MIG mode off where mig-mps switched it on and nothing is left; where devices
    /// are named, on their GPUs alone.
    pub disable_mig: bool,
    /// Also remove logs, and what users left in pipe directories.
    pub purge: bool,
}

/// Plans to take devices down.
///
/// # Errors
/// An instance to destroy is in use, a stray server may have clients, or a record cannot be read.
pub fn down(node: &Node, run_dir: &RunDir, wanted: &Down) -> Result<Plan, Refusal> {
    let selected =
        |name: &str| wanted.devices.is_empty() || wanted.devices.iter().any(|w| w == name);
    let mut plan = Plan::default();
    end_lost(node, run_dir, wanted, &selected, &mut plan)?;
    let named = wanted
        .devices
        .iter()
        .filter_map(|name| node.served_as(name));
    for served in named {
        check_ours(served, run_dir)?;
    }
    let ours = node
        .served
        .iter()
        .filter(|served| served.run_dir == *run_dir);
    for served in ours.filter(|served| selected(&served.record.name)) {
        plan.of_gpu(node, &served.record.key.gpu)
            .steps
            .push(stop(served, wanted.force));
    }
    end_all(node, &mut plan, wanted.force.is_some(), |stray| {
        selected(&node.name_of_uuid(&stray.uuid))
    })?;
    let everything = wanted.devices.is_empty();
    if wanted.destroy_mig {
        for gpu in &node.gpus {
            destroy(node, run_dir, gpu, (everything, &selected), &mut plan)?;
            let is_meant = everything || plan.gpus.iter().any(|plan| plan.uuid == gpu.uuid);
            if wanted.disable_mig && is_meant {
                disable(node, gpu, &mut plan);
            }
        }
    }
    plan.sort();
    if wanted.purge {
        plan.purge = Some(if everything {
            Purge::All
        } else {
            let present = node
                .devices()
                .filter(|device| selected(&node.name_of(device)));
            let stopped = plan.stops().map(|stop| stop.uuid.clone());
            let uuids = present.map(|device| device.uuid).chain(stopped);
            Purge::Devices(uuids.collect())
        });
    }
    let plan = plan.with_compute_modes(node, run_dir);
    match all_elsewhere(node, run_dir) {
        Some(obstacle) if plan.is_empty() => Err(obstacle.into()),
        _ => Ok(plan),
    }
}

/// Plans the end of daemons whose records cannot be read: by force, since whether they live and have clients is unknown.
/// Without it they are in the way, unless only others are asked for.
fn end_lost(
    node: &Node,
    run_dir: &RunDir,
    wanted: &Down,
    selected: &impl Fn(&str) -> bool,
    plan: &mut Plan,
) -> Result<(), Obstacle> {
    let mut is_one_asked_for = wanted.devices.is_empty();
    let mut is_one_known = false;
    for lost in &node.lost_records {
        let record = &lost.record;
        let mut devices = node.devices();
        let device = devices.find(|device| device.uuid == record.uuid);
        let default_name = device.as_ref().map(|device| device.default_name.as_str());
        let is_asked_for = selected(&record.name) || default_name.is_some_and(selected);
        if lost.run_dir != *run_dir || !is_asked_for {
            continue;
        }
        is_one_asked_for = true;
        if wanted.force.is_some() {
            is_one_known = true;
            let stop = Action::Stop(Stop {
                alive: true,
                means: Means::Signals,
                patience: Patience::AT_ONCE,
                unasked: None,
                ..Stop::of(lost)
            });
            let gpu = device.map_or_else(|| record.uuid.clone(), |device| device.key.gpu);
            let steps = &mut plan.of_gpu(node, &gpu).steps;
            steps.push(stop.because("its record is missing or cannot be read"));
        }
    }
    match unreadable(node, run_dir) {
        Some(obstacle) if is_one_asked_for && !is_one_known => Err(obstacle),
        _ => Ok(()),
    }
}

/// Plans to stop a daemon.
fn stop(served: &Served, force: Option<u32>) -> Step {
    let mut stop = Stop::of(served);
    if let Some(seconds) = force
        && (!served.clients.listed().is_empty() || served.state != DaemonState::NoServerYet)
    {
        stop.patience = Patience::Force(seconds);
    }
    // A hung one goes, whether or not it would come to itself; a busy one would refuse to quit for as long as it is.
    let is_busy = served.state == DaemonState::Busy && stop.patience == Patience::AT_ONCE;
    if stop.means == Means::Heal || is_busy {
        stop.means = Means::Signals;
    }
    let because = match served.state {
        DaemonState::Hung => ailment(served.state).unwrap_or_default(),
        DaemonState::Dead => "its daemon is gone already",
        _ => ASKED_FOR,
    };
    Action::Stop(stop).because(because)
}

fn destroy(
    node: &Node,
    run_dir: &RunDir,
    gpu: &Gpu,
    (everything, selected): (bool, &impl Fn(&str) -> bool),
    plan: &mut Plan,
) -> Result<(), Refusal> {
    const BECAUSE: &str = "mig-mps made it";
    let mut steps = Vec::new();
    let mut staying = Vec::new();
    for instance in &gpu.instances {
        let mut devices = gpu.devices();
        devices.retain(|device| {
            let part = device.part.as_ref();
            part.is_some_and(|part| part.gpu_instance == instance.id)
        });
        // A GPU instance without devices is meant only where everything is.
        let chosen = (everything || !devices.is_empty())
            && devices.iter().all(|device| selected(&node.name_of(device)));
        let is_whole = chosen && is_made_by_us(node, gpu, instance, None);
        let mut stays = !is_whole;
        for compute in &instance.compute {
            let device = devices.iter().find(|device| device.uuid == compute.uuid);
            let asked = device.is_some_and(|device| selected(&node.name_of(device)));
            let is_ours = || is_made_by_us(node, gpu, instance, Some(compute.placement));
            if !(is_whole || asked && is_ours()) {
                stays = true;
                continue;
            }
            check_idle(node, run_dir, gpu, &compute.uuid)?;
            let action = Action::DestroyComputeInstance {
                instance: instance.placement,
                compute: compute.placement,
            };
            steps.push(action.because(BECAUSE));
        }
        if stays {
            staying.push(instance);
        } else if let Some(instance) = GpuInstance::of(gpu, instance) {
            steps.push(Action::DestroyGpuInstance(instance).because(BECAUSE));
        }
    }
    if !steps.is_empty() {
        let after = SliceMap::new(gpu.units(), gpu.segments_of(&staying));
        let gpu_plan = plan.of_gpu(node, &gpu.uuid);
        gpu_plan.steps.extend(steps);
        gpu_plan.after = after;
    }
    Ok(())
}

/// Checks that no daemon of another run directory and no program outside MPS uses the instance: the driver would
/// refuse half-way.
fn check_idle(node: &Node, run_dir: &RunDir, gpu: &Gpu, uuid: &str) -> Result<(), Obstacle> {
    let on_it = |served: &&Served| served.record.uuid == uuid && served.is_alive();
    let foreign = |served: &&Served| on_it(served) && served.run_dir != *run_dir;
    if let Some(served) = node.served.iter().find(foreign) {
        let what = format!(
            "GPU {}: {uuid} is served by a daemon of {}",
            gpu.index,
            served.run_dir.path().display()
        );
        let hint = for_its_owner("have its owner take it down first, or leave --destroy-mig out");
        return Err(Obstacle::new(what, hint));
    }
    let hint = "let them end first, or leave --destroy-mig out";
    // The plan ends the daemons whose records are lost, or has been refused for them.
    let lost = node.lost_records.iter().flat_map(|lost| &lost.servers);
    let ended: Vec<Pid> = lost.map(|server| server.pid).collect();
    let mut pids = node.unaccounted_for(uuid);
    pids.retain(|pid| !ended.contains(pid));
    let outside = outside_mps(gpu, uuid, &pids, hint);
    outside.map_or(Ok(()), Err)
}

/// Plans to switch off the MIG mode that mig-mps switched on, if no instance remains.
fn disable(node: &Node, gpu: &Gpu, plan: &mut Plan) {
    let is_ours = node.switched_on.contains(&gpu.uuid);
    if !is_ours || !gpu.mig.is_some_and(|mode| mode.current || mode.pending) {
        return;
    }
    let gpu_plan = plan.of_gpu(node, &gpu.uuid);
    if gpu_plan.after.is_empty() {
        let off = Action::SwitchMig { on: false };
        gpu_plan.steps.push(off.because("mig-mps switched it on"));
        gpu_plan.due = mig_mode::due(gpu, false);
    } else if gpu_plan.steps.is_empty() {
        plan.gpus.retain(|other| other.uuid != gpu.uuid);
    }
}

/// Adds the end of every idle stray on the devices that `is_meant` selects, before everything else.
pub(super) fn end_idle(node: &Node, plan: &mut Plan, is_meant: impl Fn(&Stray) -> bool) {
    let idle = node.strays.iter().filter(|stray| stray.is_idle());
    for stray in idle.filter(|stray| is_meant(stray)) {
        end(node, plan, stray);
    }
}

/// Adds the end of every stray on these devices. One that may have clients is refused unless `force` is given.
pub(super) fn end_all(
    node: &Node,
    plan: &mut Plan,
    force: bool,
    is_meant: impl Fn(&Stray) -> bool,
) -> Result<(), Obstacle> {
    for stray in node.strays.iter().filter(|stray| is_meant(stray)) {
        if !force && !stray.is_idle() {
            let (name, pid) = (node.name_of_uuid(&stray.uuid), stray.server.pid);
            return Err(Obstacle::new(
                format!("server {pid} of {name} outlived its daemon and may have clients"),
                format!("let them end first, or mig-mps down {name} --force"),
            ));
        }
        end(node, plan, stray);
    }
    Ok(())
}

fn end(node: &Node, plan: &mut Plan, stray: &Stray) {
    let mut devices = node.devices();
    let Some(device) = devices.find(|device| device.uuid == stray.uuid) else {
        return;
    };
    let end = Action::EndStray(EndStray {
        name: node.name_of(&device),
        uuid: stray.uuid.clone(),
        server: (stray.server.pid, stray.started),
    });
    let steps = &mut plan.of_gpu(node, &device.key.gpu).steps;
    steps.insert(0, end.because("it keeps its GPU memory"));
}
