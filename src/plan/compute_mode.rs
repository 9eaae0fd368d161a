//! What daemons' starts and ends make of the compute mode of a whole GPU.

use super::action::{Action, Place, Start, Step};
use super::gpu_plan::{ModeChange, Plan};
use crate::node::{Gpu, Node};
use crate::nvml::EXCLUSIVE_PROCESS;
use crate::state::RunDir;

impl Plan {
    /// Says of each GPU what becomes of its compute mode once all steps are done.
    pub(super) fn with_compute_modes(mut self, node: &Node, home: &RunDir) -> Self {
        for plan in &mut self.gpus {
            let mut gpus = node.gpus.iter();
            let gpu = gpus.find(|gpu| gpu.uuid == plan.uuid);
            plan.compute_mode = gpu.and_then(|gpu| change(node, home, gpu, &plan.steps));
        }
        self
    }
}

fn change(node: &Node, home: &RunDir, gpu: &Gpu, steps: &[Step]) -> Option<ModeChange> {
    let start = |step: &Step| match &step.action {
        Action::Start(start) if start.place == Place::Whole => Some(wants_exclusive(start)),
        _ => None,
    };
    let ends = |step: &Step| matches!(&step.action, Action::Stop(stop) if stop.uuid == gpu.uuid);
    let is = gpu.compute_mode;
    let shall = match steps.iter().find_map(start) {
        Some(true) => EXCLUSIVE_PROCESS,
        None if !steps.iter().any(ends) => return None,
        // What somebody else has set since then stays.
        Some(false) | None if is != Some(EXCLUSIVE_PROCESS) => return None,
        Some(false) | None => before(node, home, gpu)?,
    };
    (is != Some(shall)).then_some(ModeChange { is, shall })
}

fn wants_exclusive(start: &Start) -> bool {
    start.settings.compute_mode.is_some()
}

/// The compute mode that a daemon of this boot has found, if it was given another.
fn before(node: &Node, home: &RunDir, gpu: &Gpu) -> Option<u32> {
    let mut served = node.served.iter();
    let served = served.find(|served| {
        let record = &served.record;
        record.uuid == gpu.uuid && record.boot_id == node.boot_id && served.run_dir == *home
    });
    served?.record.compute_mode_before
}
