//! The plan of one GPU before its devices have names: its layout, and the steps that make it.

use super::action::{Action, GpuInstance, Step};
use super::daemons::Daemons;
use super::gpu_plan::GpuPlan;
use super::instance_use::InstanceUse;
use super::mode;
use super::planner::Planner;
use super::refusal::Obstacle;
use super::slot::Slot;
use crate::geometry::{ComputeChoice, GpuInstanceProfile, Placement, SliceMap};
use crate::node::Gpu;

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
            Action::SwitchMig { on } => mode::due(gpu, on),
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
            let its = starts.extract_if(.., |(place, _)| place.is_in(build.placement));
            build.steps.extend(its.map(|(_, step)| step));
        }
        steps.extend(starts.into_iter().map(|(_, step)| step));
        steps.extend(self.builds.into_iter().flat_map(|build| build.steps));
        // Last: what fails before them leaves nothing of theirs to undo.
        steps.extend(daemons.sets);
        steps.extend(daemons.servers);
        GpuPlan {
            after: self.after,
            steps,
            to_be_continued: self.to_be_continued,
            obstacles,
            due,
            ..GpuPlan::of(gpu)
        }
    }
}
