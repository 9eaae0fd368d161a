//! The changes of the compute mode that the daemons of a plan bring.

use super::gpu_plan::GpuPlan;
use super::{Action, Place};
use crate::node::{Gpu, Node};
use crate::nvml::EXCLUSIVE_PROCESS;
use crate::state::RunDir;

/// A change of a GPU's compute mode, in NVML's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeChange {
    /// The index of the GPU if a joint device brings the change; `None` for the GPU of the plan.
    pub joint_gpu: Option<u32>,
    /// The present mode; `None` if unknown, as in MIG mode.
    pub from: Option<u32>,
    /// The new mode.
    pub to: u32,
}

impl ModeChange {
    /// True if the start of a daemon sets it; false if the stop of one restores it.
    pub fn is_for_a_daemon(&self) -> bool {
        self.to == EXCLUSIVE_PROCESS
    }

    /// Returns the change of a GPU that the steps of one of its plans bring. If a daemon stops and another one starts there,
    /// the start brings the change.
    fn of_gpu(node: &Node, run_dir: &RunDir, gpu: &Gpu, plan: &GpuPlan) -> Option<Self> {
        let from = gpu.compute_mode;
        let (is_joint, to) = if let Some(start) = find_start(gpu, plan) {
            (!start.joint.is_empty(), EXCLUSIVE_PROCESS)
        } else {
            let stopped = plan
                .actions()
                .filter_map(Action::as_stop)
                .filter_map(|stop| node.device_with_uuid(&stop.uuid))
                .find(|device| device.is_whole() && device.key.has_gpu(&gpu.uuid))?;
            let before = node.compute_mode_before(&stopped.uuid, run_dir)?;
            // A mode that somebody else has set since then stays.
            let to = (from == Some(EXCLUSIVE_PROCESS)).then_some(before)?;
            (stopped.key.is_joint(), to)
        };
        (from != Some(to)).then_some(Self {
            joint_gpu: is_joint.then_some(gpu.index),
            from,
            to,
        })
    }
}

/// Returns the start of a daemon that needs this GPU in exclusive mode.
fn find_start<'p>(gpu: &Gpu, plan: &'p GpuPlan) -> Option<&'p super::Start> {
    plan.actions()
        .filter_map(Action::as_start)
        .filter(|start| start.place == Place::Whole && start.settings.compute_mode.is_some())
        .find(|start| {
            if start.joint.is_empty() {
                plan.uuid == gpu.uuid
            } else {
                start.joint.contains(&gpu.index)
            }
        })
}

/// Sets in the plans of GPUs the changes of compute modes that follow from their steps. The steps of a joint device belong to
/// the plan of one of its GPUs, so the change of each GPU is in one of the plans.
pub(super) fn set_mode_changes(plans: &mut [GpuPlan], node: &Node, run_dir: &RunDir) {
    for plan in &mut *plans {
        plan.compute_modes.clear();
    }
    for gpu in &node.gpus {
        let starting = plans
            .iter()
            .position(|plan| find_start(gpu, plan).is_some());
        let change = |nth: usize| {
            let change = ModeChange::of_gpu(node, run_dir, gpu, &plans[nth])?;
            Some((nth, change))
        };
        let found = match starting {
            Some(nth) => change(nth),
            None => (0..plans.len()).find_map(change),
        };
        if let Some((nth, change)) = found {
            plans[nth].compute_modes.push(change);
        }
    }
}
