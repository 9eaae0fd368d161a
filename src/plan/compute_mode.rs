//! Changes of a whole GPU's compute mode by daemons that start and stop.

use super::action::{Action, Place, Start, Step};
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
    let start = |step: &Step| match &step.action {
        Action::Start(start) if start.place == Place::Whole => Some(wants_exclusive(start)),
        _ => None,
    };
    let ends = |step: &Step| matches!(&step.action, Action::Stop(stop) if stop.uuid == gpu.uuid);
    let from = gpu.compute_mode;
    let to = match steps.iter().find_map(start) {
        Some(true) => EXCLUSIVE_PROCESS,
        None if !steps.iter().any(ends) => return None,
        // A mode that somebody else has set since then stays.
        Some(false) | None if from != Some(EXCLUSIVE_PROCESS) => return None,
        Some(false) | None => before(node, run_dir, gpu)?,
    };
    (from != Some(to)).then_some(ModeChange { from, to })
}

fn wants_exclusive(start: &Start) -> bool {
    start.settings.compute_mode.is_some()
}

/// The compute mode from before a daemon of this boot changed it.
fn before(node: &Node, run_dir: &RunDir, gpu: &Gpu) -> Option<u32> {
    let mut served = node.served.iter();
    let served = served.find(|served| {
        let record = &served.record;
        record.uuid == gpu.uuid && record.boot_id == node.boot_id && served.run_dir == *run_dir
    });
    served?.record.compute_mode_before
}
