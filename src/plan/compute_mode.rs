//! Changes of a whole GPU's compute mode by daemons that start and stop.

use super::action::{Action, Place, Step};
use super::gpu_plan::{ModeChange, Plan};
use crate::node::{Gpu, Node};
use crate::nvml::EXCLUSIVE_PROCESS;
use crate::state::RunDir;

impl Plan {
    /// Adds to each GPU the change of its compute mode.
    pub(super) fn with_compute_modes(mut self, node: &Node, run_dir: &RunDir) -> Self {
        for plan in &mut self.gpus {
            let gpu = node.gpu(&plan.uuid);
            plan.compute_mode = gpu.and_then(|gpu| change(node, run_dir, gpu, &plan.steps));
        }
        self
    }
}

fn change(node: &Node, run_dir: &RunDir, gpu: &Gpu, steps: &[Step]) -> Option<ModeChange> {
    let actions = || steps.iter().map(|step| &step.action);
    let mut starts = actions().filter_map(Action::as_start);
    let start = starts.find(|start| start.place == Place::Whole);
    let mut ends = actions().filter_map(Action::as_stop);
    let from = gpu.compute_mode;
    let to = match start.map(|start| start.settings.compute_mode.is_some()) {
        Some(true) => EXCLUSIVE_PROCESS,
        None if !ends.any(|stop| stop.uuid == gpu.uuid) => return None,
        // A mode that somebody else has set since then stays.
        Some(false) | None if from != Some(EXCLUSIVE_PROCESS) => return None,
        Some(false) | None => node.mode_before(&gpu.uuid, run_dir)?,
    };
    (from != Some(to)).then_some(ModeChange { from, to })
}
