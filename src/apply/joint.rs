//! Joint devices in a run: their GPUs change together, or not at all.

use super::context::Run;
use super::gpu::GpuRun;
use crate::plan::Plan;
use crate::state::DeviceKey;

/// The GPUs of each joint device whose daemon a plan starts or stops, by their UUIDs.
pub(super) struct JointGpus(Vec<Vec<String>>);

impl JointGpus {
    pub(super) fn of_plan(plan: &Plan, run: &Run<'_>) -> Self {
        let node = run.context.node;
        let stopped = plan
            .stops()
            .filter_map(|stop| {
                run.find_served(&stop.uuid)
                    .or_else(|| run.find_lost(&stop.uuid))
            })
            .map(|served| served.record.key.clone());
        let started = plan.gpus.iter().flat_map(|gpu| {
            gpu.steps
                .iter()
                .filter_map(|step| step.action.as_start())
                .map(|start| start.whole_device_key(node, &gpu.uuid))
        });
        let keys = stopped.chain(started).filter(DeviceKey::is_joint);
        Self(keys.map(|key| key.joint).collect())
    }

    /// True if two GPUs, by their UUIDs, are of one joint device.
    pub(super) fn join(&self, gpu: &str, other: &str) -> bool {
        let has = |joint: &[String], uuid: &str| joint.iter().any(|own| own == uuid);
        self.0
            .iter()
            .any(|joint| has(joint, gpu) && has(joint, other))
    }

    /// Returns the GPUs on which daemons ran before, by their UUIDs, with the other GPUs of their joint devices.
    pub(super) fn served_before(&self, runs: &[GpuRun<'_>]) -> Vec<String> {
        let is_one = |gpu: &str, other: &str| gpu == other || self.join(gpu, other);
        runs.iter()
            .map(GpuRun::uuid)
            .filter(|gpu| {
                runs.iter()
                    .any(|other| other.had_daemons() && is_one(gpu, other.uuid()))
            })
            .map(str::to_owned)
            .collect()
    }

    /// Runs no further step on the other GPUs of a joint device if a step failed on one.
    pub(super) fn hold_up_failed(&self, runs: &mut [GpuRun<'_>]) {
        let failed: Vec<String> = runs
            .iter()
            .filter(|run| run.history.has_failed())
            .map(|run| run.uuid().to_owned())
            .collect();
        for run in runs {
            run.is_held_up |= failed.iter().any(|gpu| self.join(gpu, run.uuid()));
        }
    }

    /// Moves to `moved` each run on a GPU of a joint device of which one GPU is there.
    pub(super) fn follow<'a>(&self, moved: &mut Vec<GpuRun<'a>>, rest: &mut Vec<GpuRun<'a>>) {
        let follows = |run: &GpuRun<'_>, moved: &[GpuRun<'_>]| {
            moved
                .iter()
                .any(|other| self.join(run.uuid(), other.uuid()))
        };
        while let Some(next) = rest.iter().position(|run| follows(run, moved)) {
            moved.push(rest.remove(next));
        }
    }
}
