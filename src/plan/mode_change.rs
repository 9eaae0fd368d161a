//! The change of the compute mode that the daemons of a GPU bring.

use super::gpu_plan::GpuPlan;
use super::{Action, Place};
use crate::node::{Gpu, Node};
use crate::nvml::EXCLUSIVE_PROCESS;
use crate::state::RunDir;

/// A change of the compute mode, in NVML's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeChange {
    /// The present mode; `None` if unknown, as in MIG mode.
    pub from: Option<u32>,
    /// The new mode.
    pub to: u32,
    /// The indices of the GPUs of a joint device; empty for the GPU of the plan.
    pub joint: Vec<u32>,
}

impl ModeChange {
    /// True if the start of a daemon sets it; false if the stop of one restores it.
    pub fn is_for_a_daemon(&self) -> bool {
        self.to == EXCLUSIVE_PROCESS
    }
}

/// Returns the change of a GPU's compute mode that follows from the steps of its plan.
pub(super) fn mode_change(
    node: &Node,
    run_dir: &RunDir,
    gpu: &Gpu,
    plan: &GpuPlan,
) -> Option<ModeChange> {
    let start = plan
        .actions()
        .filter_map(Action::as_start)
        .find(|start| start.place == Place::Whole);
    let stopped = plan
        .actions()
        .filter_map(Action::as_stop)
        .filter_map(|stop| node.device_with_uuid(&stop.uuid))
        .find(|device| device.is_whole());
    let from = gpu.compute_mode;
    let (to, joint) = match (start, stopped) {
        (Some(start), _) if start.settings.compute_mode.is_some() => {
            (EXCLUSIVE_PROCESS, &start.joint)
        }
        // A mode that somebody else has set since then stays.
        (_, Some(stopped)) if from == Some(EXCLUSIVE_PROCESS) => (
            node.compute_mode_before(&stopped.uuid, run_dir)?,
            &stopped.joint_gpus,
        ),
        _ => return None,
    };
    (from != Some(to)).then(|| ModeChange {
        from,
        to,
        joint: joint.clone(),
    })
}
