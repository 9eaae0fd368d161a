//! The plan of one GPU before its devices have names: its layout, the instances and their users, and the steps that make
//! it.

use super::action::{Action, GpuInstance, Step};
use super::daemons::{Daemons, Slot};
use super::gate::is_unknowable;
use super::gpu_plan::{DeviceAfter, GpuPlan};
use super::mig_mode;
use super::refusal::Obstacle;
use super::up::Planner;
use crate::geometry::{ComputeChoice, Disruption, GpuInstanceProfile, Placement, SliceMap};
use crate::host::Pid;
use crate::node::{Device, Gpu, Node, Served};
use crate::nvml::{ComputeInstanceReading, GpuInstanceReading};
use crate::state::{Created, DeviceKey, InstanceKey, RunDir};

/// The wanted layout of a GPU, with the steps to it.
pub(super) struct Layout<'a> {
    pub(super) gpu: &'a Gpu,

    /// The switch of its MIG mode, if that differs.
    pub(super) mode: Option<Step>,

    /// True if its profiles are unknown until MIG mode is on.
    pub(super) to_be_continued: bool,

    /// The instances afterwards.
    pub(super) after: SliceMap,

    /// The steps that destroy: per GPU instance its compute instances, then it.
    pub(super) destroys: Vec<Step>,

    /// The steps that create, by GPU instance.
    pub(super) builds: Vec<Build>,

    /// The devices afterwards.
    pub(super) slots: Vec<Slot<'a>>,

    /// The obstacles to destroying instances.
    pub(super) obstacles: Vec<Obstacle>,
}

/// The steps that create a GPU instance, or compute instances in it.
pub(super) struct Build {
    pub(super) placement: Placement,
    pub(super) steps: Vec<Step>,
}

impl<'a> Layout<'a> {
    /// The layout that changes nothing and has no devices.
    pub(super) fn of(gpu: &'a Gpu) -> Self {
        Self {
            gpu,
            mode: None,
            to_be_continued: false,
            after: gpu.slice_map(),
            destroys: Vec::new(),
            builds: Vec::new(),
            slots: Vec::new(),
            obstacles: Vec::new(),
        }
    }

    pub(super) fn build(
        &mut self,
        offer: &GpuInstanceProfile,
        placement: Placement,
        stands: bool,
        compute: &[ComputeChoice],
    ) {
        let mut steps = Vec::new();
        let mut because = "its GPU instance is there without it";
        if !stands {
            because = "the profile asks for it";
            let instance = GpuInstance {
                profile: offer.id,
                name: offer.name.clone(),
                placement,
            };
            steps.push(Action::CreateGpuInstance(instance).because(because));
        }
        steps.extend(compute.iter().map(|&compute| {
            let instance = placement;
            Action::CreateComputeInstance { instance, compute }.because(because)
        }));
        if !steps.is_empty() {
            self.builds.push(Build { placement, steps });
        }
    }

    /// Adds the steps that destroy compute instances of a GPU instance, by their positions.
    pub(super) fn destroy_compute(
        &mut self,
        standing: &InstanceUse<'_>,
        gone: impl Iterator<Item = usize>,
        because: &str,
    ) {
        for part in gone.map(|nth| &standing.parts[nth]) {
            self.obstacles.extend(part.in_the_way(self.gpu));
            let action = Action::DestroyComputeInstance {
                instance: standing.placement(),
                compute: part.compute.placement,
            };
            self.destroys.push(action.because(because));
        }
    }

    /// Adds the steps that destroy a GPU instance and what is in it.
    pub(super) fn destroy(&mut self, standing: &InstanceUse<'_>, because: &str) {
        // Instances are found profile by profile: there is one.
        if let Some(instance) = GpuInstance::of(self.gpu, standing.instance) {
            self.destroy_compute(standing, 0..standing.parts.len(), because);
            let action = Action::DestroyGpuInstance(instance);
            self.destroys.push(action.because(because));
        }
    }

    /// The steps in their order: daemons end, instances go, the mode changes; then every device gets
    /// its daemon as soon as it is there.
    pub(super) fn finish(mut self, planner: Planner<'_>) -> GpuPlan {
        let gpu = self.gpu;
        let due = self.mode.as_ref().and_then(|step| match step.action {
            Action::SwitchMig { on } => mig_mode::due(gpu, on),
            _ => None,
        });
        let daemons = Daemons::of(planner, gpu, &self.slots);
        let mut obstacles = self.obstacles;
        obstacles.extend(daemons.obstacles);
        let mut steps = daemons.stops;
        steps.extend(self.destroys);
        steps.extend(self.mode);
        let mut starts = daemons.starts;
        for build in &mut self.builds {
            let its =
                starts.extract_if(.., |(place, _)| place.placement() == Some(build.placement));
            build.steps.extend(its.map(|(_, step)| step));
        }
        steps.extend(starts.into_iter().map(|(_, step)| step));
        steps.extend(self.builds.into_iter().flat_map(|build| build.steps));
        // Last: what fails before them leaves nothing of theirs to undo.
        steps.extend(daemons.sets);
        steps.extend(daemons.servers);
        let mut devices: Vec<DeviceAfter> = self.slots.iter().map(Slot::afterwards).collect();
        devices.sort_by_key(|device| device.place);
        GpuPlan {
            after: self.after,
            devices,
            steps,
            to_be_continued: self.to_be_continued,
            obstacles,
            due,
            ..GpuPlan::of(gpu)
        }
    }
}

/// An existing GPU instance and its users.
pub(super) struct InstanceUse<'a> {
    pub(super) instance: &'a GpuInstanceReading,
    /// Its compute instances, by placement.
    pub(super) parts: Vec<ComputeUse<'a>>,
}

/// An existing compute instance and its users.
pub(super) struct ComputeUse<'a> {
    pub(super) compute: &'a ComputeInstanceReading,
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
    /// Returns the instances of a GPU, by placement.
    pub(super) fn all(node: &'a Node, run_dir: &RunDir, gpu: &'a Gpu) -> Vec<Self> {
        let mut all = Vec::new();
        for instance in &gpu.instances {
            let mut parts = Vec::new();
            for compute in &instance.compute {
                let key = DeviceKey {
                    instance: Some(InstanceKey {
                        profile: instance.profile,
                        placement: instance.placement,
                        compute: compute.placement,
                    }),
                    ..DeviceKey::whole(&gpu.uuid)
                };
                let served = served_here(node, run_dir, &key);
                let restart = served.map_or(Disruption::NONE, |served| {
                    disruption_of_end(served, run_dir)
                });
                let device = node.device_with_uuid(&compute.uuid);
                let strangers = device.map(Device::unaccounted).unwrap_or_default();
                let itself = Disruption {
                    clients: u32::try_from(strangers.len()).unwrap_or(u32::MAX),
                    compute_instances: 1,
                    ..Disruption::NONE
                };
                parts.push(ComputeUse {
                    compute,
                    served,
                    restart,
                    disruption: itself + restart,
                    strangers,
                });
            }
            all.push(Self { instance, parts });
        }
        all
    }

    pub(super) fn placement(&self) -> Placement {
        self.instance.placement
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
pub(super) fn served_here<'a>(
    node: &'a Node,
    run_dir: &RunDir,
    key: &DeviceKey,
) -> Option<&'a Served> {
    let device = node.device_at(key).filter(|device| device.is_there())?;
    let served = device.served.as_ref();
    served.filter(|served| concerns_us(served, run_dir))
}

pub(super) fn concerns_us(served: &Served, run_dir: &RunDir) -> bool {
    served.run_dir == *run_dir || served.is_alive()
}

/// The disruption of stopping a daemon. One that cannot be asked may have a client.
fn disruption_of_end(served: &Served, run_dir: &RunDir) -> Disruption {
    let unasked = is_unknowable(served) || served.run_dir != *run_dir;
    let clients = served.clients.listed().len() + usize::from(unasked);
    Disruption {
        clients: u32::try_from(clients).unwrap_or(u32::MAX),
        daemons: served.is_alive().into(),
        ..Disruption::NONE
    }
}

/// Programs that compute on a device outside MPS: the driver would refuse to destroy it.
pub(super) fn outside_mps(gpu: &Gpu, uuid: &str, pids: &[Pid], hint: &str) -> Option<Obstacle> {
    let (index, pids) = (gpu.index, list(pids)?);
    let what = format!("GPU {index}: pid {pids} uses {uuid} outside MPS");
    Some(Obstacle::new(what, hint))
}

/// `4711, 4712`; `None` if there are none.
pub(super) fn list(pids: &[Pid]) -> Option<String> {
    let words: Vec<String> = pids.iter().map(Pid::to_string).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// True if mig-mps made this GPU instance, or that compute instance in it.
pub(super) fn is_made_by_us(
    node: &Node,
    gpu: &Gpu,
    instance: &GpuInstanceReading,
    compute: Option<Placement>,
) -> bool {
    node.created.contains(&Created {
        gpu: gpu.uuid.clone(),
        profile: instance.profile,
        placement: instance.placement,
        compute,
    })
}

impl ComputeUse<'_> {
    pub(super) fn in_the_way(&self, gpu: &Gpu) -> Option<Obstacle> {
        let uuid = &self.compute.uuid;
        outside_mps(gpu, uuid, &self.strangers, "let them end first")
    }
}
