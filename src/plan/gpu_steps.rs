//! The plan of one GPU before its devices have names: the instances and their users, and the steps to its layout.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::action::{Action, GpuInstance, Place};
use super::device::DevicePlan;
use super::gpu_plan::GpuPlan;
use super::preconditions::unknown_clients_problem;
use super::reason::Reason;
use super::up::Planner;
use crate::failure::Problem;
use crate::geometry::{ComputeChoice, Disruption, GpuInstanceProfile, Placement};
use crate::host::Pid;
use crate::node::{Device, Gpu, Node, Served};
use crate::nvml::{ComputeInstanceReading, GpuInstanceReading};
use crate::state::RunDir;

/// The wanted layout of a GPU, with the steps to it.
pub(super) struct Layout<'a> {
    pub(super) gpu: &'a Gpu,

    /// The plan without its daemons. Its steps have no order among each other yet.
    pub(super) plan: GpuPlan,

    /// The devices afterwards.
    pub(super) devices: Vec<DevicePlan>,
}

impl<'a> Layout<'a> {
    /// The layout that changes nothing and has no devices.
    pub(super) fn new(gpu: &'a Gpu) -> Self {
        Self {
            gpu,
            plan: GpuPlan::new(gpu),
            devices: Vec::new(),
        }
    }

    /// Adds the step that switches the GPU's MIG mode, if its current or its pending mode differs.
    pub(super) fn add_mig_switch(&mut self, node: &Node, on: bool) {
        let Some(mode) = self.gpu.mig else {
            return;
        };
        let because = match (mode.current == on, on) {
            (true, _) if mode.pending == on => return,
            (true, _) => "an earlier change is pending, and a reset would carry it out",
            (false, true) if mode.pending => "an earlier change is pending",
            (false, true) => "requested by the profile",
            (false, false) => "the profile wants this GPU whole",
        };
        let step = Action::SwitchMig { on }.with_reason(because);
        self.plan.steps.push(step);
        self.plan.due = reset_or_reboot_due(self.gpu, on);
        self.plan
            .obstacles
            .extend(check_gpu_idle(node, self.gpu).err());
    }

    /// Adds the steps that create a GPU instance, or compute instances in one that stands.
    pub(super) fn add_create_steps(
        &mut self,
        offer: &GpuInstanceProfile,
        placement: Placement,
        stands: bool,
        compute: &[ComputeChoice],
    ) {
        let mut because = "its GPU instance is there without it";
        if !stands {
            because = "requested by the profile";
            let instance = GpuInstance {
                profile: offer.id,
                name: offer.name.clone(),
                placement,
            };
            let step = Action::CreateGpuInstance(instance).with_reason(because);
            self.plan.steps.push(step);
        }
        self.plan.steps.extend(compute.iter().map(|&compute| {
            let instance = placement;
            Action::CreateComputeInstance { instance, compute }.with_reason(because)
        }));
    }

    /// Adds the steps that destroy compute instances of a GPU instance, by their positions.
    pub(super) fn add_compute_destroy_steps(
        &mut self,
        standing: &InstanceUse<'_>,
        gone: impl Iterator<Item = usize>,
        because: &str,
    ) {
        for part in gone.map(|nth| &standing.parts[nth]) {
            if let Some(device) = part.device {
                let checked = check_no_programs_outside_mps(
                    self.gpu,
                    device,
                    &part.strangers,
                    END_PROGRAMS_HINT,
                );
                self.plan.obstacles.extend(checked.err());
            }
            let action = Action::DestroyComputeInstance {
                instance: standing.instance.placement,
                compute: part.compute.placement,
                unmanaged: part.unmanaged,
            };
            let because = reason_to_destroy(because, part.unmanaged);
            self.plan.steps.push(action.with_reason(because));
        }
    }

    /// Adds the steps that destroy a GPU instance and what is in it.
    pub(super) fn add_destroy_steps(&mut self, standing: &InstanceUse<'_>, because: &str) {
        let GpuInstanceReading {
            profile, placement, ..
        } = standing.instance;
        // Instances are found profile by profile: there is one.
        if let Some(instance) = GpuInstance::from_profiles(&self.gpu.profiles, *profile, *placement)
        {
            self.add_compute_destroy_steps(standing, 0..standing.parts.len(), because);
            let unmanaged = standing.unmanaged;
            let action = Action::DestroyGpuInstance {
                instance,
                unmanaged,
            };
            let because = reason_to_destroy(because, unmanaged);
            self.plan.steps.push(action.with_reason(because));
        }
    }

    /// Returns the plan with the daemons of the devices, which have their names, and its steps in their order.
    pub(super) fn into_gpu_plan(self, planner: Planner<'_>) -> GpuPlan {
        let mut plan = self.plan;
        plan.add_daemons(planner, &self.devices);
        plan.devices = self.devices;
        plan.devices.sort_by_key(|device| device.place);
        let built: BTreeSet<Placement> = plan
            .actions()
            .filter_map(|action| match action {
                Action::CreateGpuInstance(instance) => Some(instance.placement),
                Action::CreateComputeInstance { instance, .. } => Some(*instance),
                _ => None,
            })
            .collect();
        plan.steps
            .sort_by_key(|step| Rank::for_action(&step.action, &built));
        plan
    }
}

/// The order of the steps: daemons end, instances go, the mode changes; then every device gets its daemon as soon as it is
/// there. Steps of one rank keep their order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Stop,
    Destroy,
    SwitchMig,
    /// The daemon of a device that stands.
    Start(Place),
    /// The instances at a placement, the large ones first, and then the daemons of their devices.
    Build(Reverse<u32>, Placement, Option<Place>),
    // What fails before these two leaves nothing of theirs to undo.
    Set,
    StartServer,
}

impl Rank {
    /// The rank of a step. `built` are the GPU instances in which something is created.
    fn for_action(action: &Action, built: &BTreeSet<Placement>) -> Self {
        match action {
            Action::Stop(_) | Action::EndStray(_) => Self::Stop,
            Action::DestroyComputeInstance { .. } | Action::DestroyGpuInstance { .. } => {
                Self::Destroy
            }
            Action::SwitchMig { .. } => Self::SwitchMig,
            Action::Start(start) => match start.place.placement() {
                Some(at) if built.contains(&at) => {
                    Self::Build(Reverse(at.size), at, Some(start.place))
                }
                _ => Self::Start(start.place),
            },
            Action::CreateGpuInstance(GpuInstance { placement: at, .. })
            | Action::CreateComputeInstance { instance: at, .. } => {
                Self::Build(Reverse(at.size), *at, None)
            }
            Action::Set(_) | Action::Close(_) => Self::Set,
            Action::StartServer(_) => Self::StartServer,
        }
    }
}

/// Refuses to switch on the MIG mode of a GPU on which programs compute outside MPS.
fn check_gpu_idle(node: &Node, gpu: &Gpu) -> Result<(), Problem> {
    let device = node.whole_device_of(gpu);
    let programs =
        device.and_then(|device| device.describe_processes(&device.processes_outside_mps()));
    match programs {
        Some(programs) if !gpu.in_mig_mode() => Err(Problem::with_processes(
            &programs,
            END_PROGRAMS_HINT,
            |programs| {
                format!(
                    "cannot change the MIG mode of GPU {} ({}): in use outside MPS by {programs}",
                    gpu.index, gpu.product
                )
            },
        )),
        _ => Ok(()),
    }
}

/// The remedy for programs outside MPS.
const END_PROGRAMS_HINT: &str =
    "wait for these programs to exit or end them yourself; --force ends only MPS clients";

/// The reset or reboot that a change of the mode needs, as far as it is known beforehand.
pub(super) fn reset_or_reboot_due(gpu: &Gpu, on: bool) -> Option<String> {
    let mode = gpu.mig?;
    if mode.current != on && mode.pending == on {
        let pending = "an earlier change of the MIG mode is pending: it needs a reset (up --reset) or a reboot";
        return Some(pending.to_owned());
    }
    let resets = "changing the MIG mode resets the GPU. An idle GPU is reset automatically; use --reset for other \
     GPUs. In a virtual machine, reboot instead.";
    (gpu.resetless == Some(false)).then(|| resets.to_owned())
}

/// An existing GPU instance and its users.
pub(super) struct InstanceUse<'a> {
    pub(super) instance: &'a GpuInstanceReading,
    /// True if mig-mps is not known to have made it.
    pub(super) unmanaged: bool,
    /// Its compute instances, by placement.
    pub(super) parts: Vec<ComputeUse<'a>>,
}

/// An existing compute instance and its users.
pub(super) struct ComputeUse<'a> {
    pub(super) compute: &'a ComputeInstanceReading,
    /// True if mig-mps is not known to have made it.
    pub(super) unmanaged: bool,
    pub(super) device: Option<&'a Device>,
    /// Its daemon, if that is ours or alive.
    pub(super) served: Option<&'a Served>,
    /// The disruption of stopping that daemon.
    pub(super) restart: Disruption,
    /// The disruption of destroying it.
    pub(super) disruption: Disruption,
    /// Processes that compute on it outside MPS.
    pub(super) strangers: Vec<Pid>,
}

impl<'a> InstanceUse<'a> {
    /// Returns the instances of a GPU, by placement, but for those of virtual machines.
    pub(super) fn all_on_gpu(node: &'a Node, run_dir: &RunDir, gpu: &'a Gpu) -> Vec<Self> {
        let mut all = Vec::new();
        let instances = gpu
            .instances
            .iter()
            .filter(|one| !node.belongs_to_virtual_machine(gpu, one));
        for instance in instances {
            let mut parts = Vec::new();
            for compute in &instance.compute {
                let device = node.device_with_uuid(&compute.uuid);
                let served = device.and_then(|device| served_here(device, run_dir));
                let restart = served.map_or(Disruption::NONE, |served| {
                    disruption_of_end(served, run_dir)
                });
                let strangers = device
                    .map(Device::processes_outside_mps)
                    .unwrap_or_default();
                let itself = Disruption {
                    clients: u32::try_from(strangers.len()).unwrap_or(u32::MAX),
                    compute_instances: 1,
                    ..Disruption::NONE
                };
                let place = Some(compute.placement);
                parts.push(ComputeUse {
                    compute,
                    unmanaged: !is_made_by_us(node, gpu, instance, place),
                    device,
                    served,
                    restart,
                    disruption: itself + restart,
                    strangers,
                });
            }
            let unmanaged = !is_made_by_us(node, gpu, instance, None);
            all.push(Self {
                instance,
                unmanaged,
                parts,
            });
        }
        all
    }

    /// The disruption of destroying it.
    pub(super) fn disruption(&self) -> Disruption {
        let itself = Disruption {
            gpu_instances: 1,
            ..Disruption::NONE
        };
        itself + self.parts.iter().map(|part| part.disruption).sum()
    }
}

/// Returns the record of an existing device: ours, or that of another user's running daemon. The remains of another
/// user's dead daemon are no obstacle, and not ours to remove.
pub(super) fn served_here<'a>(device: &'a Device, run_dir: &RunDir) -> Option<&'a Served> {
    let served = device.served.as_ref();
    served.filter(|served| device.is_there() && concerns_us(served, run_dir))
}

pub(super) fn concerns_us(served: &Served, run_dir: &RunDir) -> bool {
    served.run_dir == *run_dir || served.is_alive()
}

/// The disruption of stopping a daemon. One that cannot be asked may have a client.
fn disruption_of_end(served: &Served, run_dir: &RunDir) -> Disruption {
    let unasked = served.run_dir != *run_dir || unknown_clients_problem(served).is_some();
    let programs = served.clients.as_slice().len() + served.waiting.len();
    let clients = programs + usize::from(unasked);
    Disruption {
        clients: u32::try_from(clients).unwrap_or(u32::MAX),
        daemons: served.is_alive().into(),
        ..Disruption::NONE
    }
}

/// Refuses to destroy a device on which these programs compute outside MPS, as the driver would.
pub(super) fn check_no_programs_outside_mps(
    gpu: &Gpu,
    device: &Device,
    pids: &[Pid],
    hint: &str,
) -> Result<(), Problem> {
    let Some(programs) = device.describe_processes(pids) else {
        return Ok(());
    };
    let verb = if pids.len() == 1 { "uses" } else { "use" };
    let (index, name) = (gpu.index, &device.name);
    Err(Problem::with_processes(&programs, hint, |programs| {
        format!("GPU {index}: {programs} {verb} {name} outside MPS")
    }))
}

/// True if mig-mps made this GPU instance, or that compute instance in it.
pub(super) fn is_made_by_us(
    node: &Node,
    gpu: &Gpu,
    instance: &GpuInstanceReading,
    compute: Option<Placement>,
) -> bool {
    let (parts, wholes): (Vec<_>, Vec<_>) = node
        .created
        .iter()
        .filter(|created| created.is_in(&gpu.uuid, instance.profile, instance.placement))
        .partition(|created| created.compute.is_some());
    match compute {
        None => !wholes.is_empty(),
        // mig-mps 0.3 did not record those that it made with their GPU instance.
        Some(_) if parts.is_empty() => !wholes.is_empty(),
        place => parts.iter().any(|created| created.compute == place),
    }
}

/// The reason to destroy an instance, with the remark that others may have made it.
pub(super) fn reason_to_destroy(because: impl Into<Reason>, unmanaged: bool) -> Reason {
    let because = because.into();
    if unmanaged {
        because.with_remark("mig-mps has no record of creating it")
    } else {
        because
    }
}
