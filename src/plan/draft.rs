use super::action::{Action, Place, Step};
use super::daemons::Daemons;
use super::gpu_plan::GpuPlan;
use super::layout::Layout;
use super::mode;
use crate::node::{Gpu, Node};
use crate::state::RunDir;

/// The plan of one GPU, before its devices have names.
pub(super) struct Draft<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) mode: Option<Step>,
    pub(super) layout: Layout<'a>,
    pub(super) to_be_continued: bool,
}

impl Draft<'_> {
    /// The steps in their order: daemons end, instances go, the mode changes; then every device gets
    /// its daemon as soon as it is there.
    pub(super) fn finish(self, node: &Node, run_dir: &RunDir) -> GpuPlan {
        let gpu = self.gpu;
        let due = match &self.mode {
            Some(Step {
                action: Action::SwitchMig { on },
                ..
            }) => mode::due(gpu, *on),
            _ => None,
        };
        let Layout {
            after,
            destroys,
            builds,
            slots,
            mut obstacles,
        } = self.layout;
        let daemons = Daemons::of(node, run_dir, gpu, &slots);
        obstacles.extend(daemons.obstacles);
        let mut steps = daemons.stops;
        steps.extend(destroys);
        steps.extend(self.mode);
        let is_built = |place: &Place| builds.iter().any(|build| place.is_in(build.placement));
        let (later, now): (Vec<_>, Vec<_>) = daemons
            .starts
            .into_iter()
            .partition(|(place, _)| is_built(place));
        steps.extend(now.into_iter().map(|(_, step)| step));
        for build in builds {
            steps.extend(build.steps);
            let its = later
                .iter()
                .filter(|(place, _)| place.is_in(build.placement));
            steps.extend(its.map(|(_, step)| step.clone()));
        }
        // Last: what fails before them leaves nothing of theirs to undo.
        steps.extend(daemons.sets);
        steps.extend(daemons.servers);
        GpuPlan {
            index: Some(gpu.index),
            uuid: gpu.uuid.clone(),
            product: gpu.product.clone(),
            before: gpu.slice_map(),
            after,
            steps,
            to_be_continued: self.to_be_continued,
            obstacles,
            due,
            compute_mode: None,
        }
    }
}
