//! Plans `down`, and the end of servers that have outlived their daemons.

use super::gpu_steps::{
    ComputeUse, InstanceUse, check_no_programs_outside_mps, reason_to_destroy, reset_or_reboot_due,
};
use super::preconditions::{check_ours, check_own_daemon, check_records_readable, owner_hint};
use super::{Action, GpuInstance, Plan, Purge, Reason, Refusal, Step, Stop};
use crate::failure::Problem;
use crate::geometry::SliceMap;
use crate::host::Pid;
use crate::mps::{ClientPolicy, StopMethod};
use crate::node::{DaemonState, Gpu, Node, Served};
use crate::state::RunDir;

/// A request to take devices down.
#[derive(Clone, Debug)]
pub struct DownRequest {
    /// The names of the devices, those of `gpus` included. Without a device and a GPU, all are meant.
    pub devices: Vec<String>,
    /// The UUIDs of the GPUs that are meant as a whole: also instances without a device, and MIG modes.
    pub gpus: Vec<String>,
    /// End daemons that have clients, these many seconds after refusing new ones.
    pub force: Option<u32>,
    /// The instances to destroy.
    pub destroy: Destroy,
    /// Also switch the MIG mode off where mig-mps switched it on and nothing is left; where devices
    /// are named, only on their GPUs.
    pub disable_mig: bool,
    /// Also remove logs, and what users left in pipe directories.
    pub purge: bool,
}

/// The instances of the selected devices that are destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destroy {
    Nothing,
    /// Those that mig-mps made.
    Made,
    All,
}

impl DownRequest {
    /// True if it names no device and no GPU.
    pub fn means_all(&self) -> bool {
        self.devices.is_empty() && self.gpus.is_empty()
    }

    /// True if the devices are remembered, as stopped.
    fn keeps_devices(&self) -> bool {
        !self.means_all() && self.destroy == Destroy::Nothing && !self.purge
    }

    /// True if everything on the GPU is meant.
    pub fn means_whole(&self, gpu: &Gpu) -> bool {
        self.means_all() || self.gpus.contains(&gpu.uuid)
    }

    /// True if the device with that name is taken down.
    pub fn selects(&self, name: &str) -> bool {
        self.means_all() || self.devices.iter().any(|device| device == name)
    }
}

/// Plans to take devices down.
///
/// # Errors
/// An instance to destroy is in use, a stray server may have clients, or a record cannot be read.
pub fn down(node: &Node, run_dir: &RunDir, wanted: &DownRequest) -> Result<Plan, Refusal> {
    let mut plan = Plan::default();
    stop_lost_daemons(node, run_dir, wanted, &mut plan)?;
    for name in &wanted.devices {
        if let Some(served) = node.served_named(name) {
            check_ours(served, run_dir)?;
        }
    }
    for served in node.served() {
        if served.run_dir == *run_dir && wanted.selects(&served.record.name) {
            let mut step = step_to_stop(served, wanted.force);
            if let Action::Stop(stop) = &mut step.action {
                stop.keeps_device = wanted.keeps_devices() && served.record.boot_id == node.boot_id;
            }
            let steps = &mut plan.gpu_plan_mut(node, &served.record.key.gpu).steps;
            steps.push(step);
        }
    }
    end_strays(node, wanted, &mut plan)?;
    if wanted.destroy != Destroy::Nothing {
        for gpu in &node.gpus {
            destroy_instances(node, run_dir, gpu, wanted, &mut plan)?;
            let is_meant =
                wanted.means_whole(gpu) || plan.gpus.iter().any(|plan| plan.uuid == gpu.uuid);
            if wanted.disable_mig && is_meant {
                disable_mig(node, gpu, &mut plan);
            }
        }
    }
    let mut plan = plan.complete(node, run_dir);
    if wanted.purge {
        plan.purge = Some(devices_to_purge(node, wanted, &plan));
    }
    if plan.is_empty() {
        check_own_daemon(node, run_dir)?;
    }
    Ok(plan)
}

/// The devices to purge: those selected, and those whose daemons stop.
fn devices_to_purge(node: &Node, wanted: &DownRequest, plan: &Plan) -> Purge {
    if wanted.means_all() {
        return Purge::All;
    }
    let selected = node
        .devices
        .iter()
        .filter(|device| device.exists() && wanted.selects(&device.name))
        .map(|device| device.uuid.clone());
    let stopped = plan.stops().map(|stop| stop.uuid.clone());
    // One that lacks a GPU does not exist.
    let stopped_before = wanted
        .devices
        .iter()
        .filter_map(|name| node.stopped_named(name))
        .map(|(_, stopped)| stopped.record.uuid.clone());
    Purge::Devices(selected.chain(stopped).chain(stopped_before).collect())
}

/// Plans to stop daemons whose records cannot be read: by force, since whether they run and have clients is unknown.
/// Without it they are in the way, unless only others are asked for.
fn stop_lost_daemons(
    node: &Node,
    run_dir: &RunDir,
    wanted: &DownRequest,
    plan: &mut Plan,
) -> Result<(), Problem> {
    let mut is_one_asked_for = wanted.means_all();
    let mut is_one_known = false;
    for lost in &node.lost_records {
        let record = &lost.record;
        // A joint device without a record has the names of its GPUs.
        let mut devices = node.existing_devices();
        let is_asked_for = wanted.selects(&record.name)
            || devices.any(|device| {
                let is_its = device.uuid == record.uuid || record.key.excludes(&device.key);
                is_its && wanted.selects(&device.name)
            });
        let device = node.device_with_uuid(&record.uuid);
        if lost.run_dir != *run_dir || !is_asked_for {
            continue;
        }
        is_one_asked_for = true;
        if wanted.force.is_some() {
            is_one_known = true;
            let stop = Action::Stop(Stop {
                alive: true,
                means: StopMethod::Signals,
                patience: ClientPolicy::AT_ONCE,
                unasked: None,
                ..Stop::from_served(lost)
            });
            let gpu = device.map_or(&record.key.gpu, |device| &device.key.gpu);
            let steps = &mut plan.gpu_plan_mut(node, gpu).steps;
            steps.push(stop.with_reason("its record is missing or cannot be read"));
        }
    }
    if is_one_asked_for && !is_one_known {
        check_records_readable(node, run_dir)?;
    }
    Ok(())
}

fn step_to_stop(served: &Served, force: Option<u32>) -> Step {
    let mut stop = Stop::from_served(served);
    if let Some(problem) = &mut stop.unasked
        && let Some(hint) = &mut problem.hint
        && stop.means == StopMethod::Signals
    {
        *hint = format!("{hint}; `mig-mps down {} --force` ends it", stop.name);
    }
    if let Some(seconds) = force
        && (!served.clients.as_slice().is_empty() || served.state != DaemonState::NoServerYet)
    {
        stop.patience = ClientPolicy::Force(seconds);
    }
    // A hung one goes, whether or not it would come to itself; a busy one would refuse to quit for as long as it is.
    let is_busy = served.state == DaemonState::Busy && stop.patience == ClientPolicy::AT_ONCE;
    if stop.means == StopMethod::Heal || is_busy {
        stop.means = StopMethod::Signals;
    }
    let because = match served.state {
        DaemonState::Hung(_) => served.state.outage_reason().unwrap_or_default().into(),
        DaemonState::Dead => "its daemon has already exited".into(),
        _ => Reason::ASKED_FOR,
    };
    Action::Stop(stop).with_reason(because)
}

/// Plans to destroy the selected instances of a GPU that mig-mps made, or all selected ones. A GPU instance with a part that
/// stays, stays.
fn destroy_instances(
    node: &Node,
    run_dir: &RunDir,
    gpu: &Gpu,
    wanted: &DownRequest,
    plan: &mut Plan,
) -> Result<(), Refusal> {
    let because = |unmanaged: bool| {
        if unmanaged {
            reason_to_destroy(Reason::ASKED_FOR, true)
        } else {
            "mig-mps created it".into()
        }
    };
    let mut steps = Vec::new();
    let mut staying = node.virtual_machine_instances(gpu);
    let selected: Vec<&String> = node
        .devices_of(gpu)
        .filter(|device| wanted.selects(&device.name))
        .map(|device| &device.uuid)
        .collect();
    for standing in InstanceUse::all_on_gpu(node, run_dir, gpu) {
        let (instance, parts) = (standing.instance, &standing.parts);
        let is_consented = |unmanaged: bool| !unmanaged || wanted.destroy == Destroy::All;
        let goes_with_device = |part: &ComputeUse<'_>| {
            let is_meant = wanted.means_whole(gpu) || selected.contains(&&part.compute.uuid);
            is_meant && is_consented(part.unmanaged)
        };
        // A GPU instance without devices is meant only where everything on the GPU is.
        let goes = is_consented(standing.unmanaged)
            && parts.iter().all(goes_with_device)
            && (wanted.means_whole(gpu) || !parts.is_empty());
        for part in parts.iter().filter(|part| goes_with_device(part)) {
            check_idle(node, run_dir, gpu, &part.compute.uuid)?;
            let action = Action::DestroyComputeInstance {
                instance: instance.placement,
                compute: part.compute.placement,
                unmanaged: part.unmanaged,
            };
            steps.push(action.with_reason(because(part.unmanaged)));
        }
        if !goes {
            staying.push(instance);
        } else if let Some(gone) =
            GpuInstance::from_profiles(&gpu.profiles, instance.profile, instance.placement)
        {
            let unmanaged = standing.unmanaged;
            let action = Action::DestroyGpuInstance {
                instance: gone,
                unmanaged,
            };
            steps.push(action.with_reason(because(unmanaged)));
        }
    }
    if !steps.is_empty() {
        let after = SliceMap::new(gpu.placement_units(), gpu.segments_of(&staying));
        let gpu_plan = plan.gpu_plan_mut(node, &gpu.uuid);
        gpu_plan.steps.extend(steps);
        gpu_plan.after = after;
    }
    Ok(())
}

/// Checks that no daemon of another run directory and no program outside MPS uses the instance: the driver would
/// refuse half-way.
fn check_idle(node: &Node, run_dir: &RunDir, gpu: &Gpu, uuid: &str) -> Result<(), Problem> {
    let foreign = node.served().find(|served| {
        served.record.uuid == uuid && served.is_alive() && served.run_dir != *run_dir
    });
    if let Some(served) = foreign {
        let what = format!(
            "GPU {}: {uuid} is served by a daemon of {}",
            gpu.index,
            served.run_dir.path().display()
        );
        let hint =
            owner_hint("ask its owner to stop it first, or omit --destroy-mig and --disable-mig");
        return Err(Problem::new(what, hint));
    }
    let hint = "wait for these programs to exit or end them yourself (--force ends only MPS clients), or omit \
     --destroy-mig and --disable-mig";
    // The plan ends the daemons whose records are lost, or has been refused for them.
    let ended: Vec<Pid> = node
        .lost_records
        .iter()
        .flat_map(|lost| &lost.servers)
        .map(|server| server.pid)
        .collect();
    let Some(device) = node.device_with_uuid(uuid) else {
        return Ok(());
    };
    let mut pids = device.processes_outside_mps();
    pids.retain(|pid| !ended.contains(pid));
    check_no_programs_outside_mps(gpu, device, &pids, hint)
}

/// Plans to switch off the MIG mode that mig-mps switched on, if no instance remains.
fn disable_mig(node: &Node, gpu: &Gpu, plan: &mut Plan) {
    let is_ours = node.switched_on.contains(&gpu.uuid);
    if !is_ours || !gpu.mig.is_some_and(|mode| mode.current || mode.pending) {
        return;
    }
    let gpu_plan = plan.gpu_plan_mut(node, &gpu.uuid);
    if gpu_plan.after.is_empty() {
        let off = Action::SwitchMig { on: false };
        gpu_plan.steps.push(off.with_reason("mig-mps enabled it"));
        gpu_plan.due = reset_or_reboot_due(gpu, false);
    } else if gpu_plan.steps.is_empty() {
        plan.gpus.retain(|other| other.uuid != gpu.uuid);
    }
}

/// Adds the end of every stray on the selected devices. One that may have clients is ended only by force.
fn end_strays(node: &Node, wanted: &DownRequest, plan: &mut Plan) -> Result<(), Problem> {
    for device in &node.devices {
        let name = &device.name;
        if !wanted.selects(name) {
            continue;
        }
        for stray in &device.strays {
            if wanted.force.is_none() && !stray.is_idle() {
                let pid = stray.server.pid;
                return Err(Problem::new(
                    format!("server {pid} of {name} outlived its daemon and may have clients"),
                    format!("wait for the clients to exit, or run `mig-mps down {name} --force`"),
                ));
            }
            plan.end_stray(node, device, stray);
        }
    }
    Ok(())
}
