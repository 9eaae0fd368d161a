//! The state of a GPU that a run changes, and the course of the run there.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::context::Run;
use super::error::FailedStep;
use crate::geometry::{GpuInstanceProfile, Placement};
use crate::host::{Interrupt, lock};
use crate::node::{Closer, Gpu, Served};
use crate::nvml::{GpuHandle, GpuInstanceReading, NvmlError};
use crate::plan::GpuPlan;
use crate::state::DeviceRecord;

/// The state of a GPU, as far as a run changes it.
#[derive(Clone, Debug, Default)]
pub(super) struct GpuState {
    /// True if MIG mode is on.
    pub(super) mig: bool,
    pub(super) instances: BTreeMap<Placement, GpuInstanceReading>,
    /// The daemons that run, by the UUIDs of their devices. Before a run also those that this process has closed to new programs,
    /// and that have ended: they start again if the run is undone.
    pub(super) daemons: BTreeMap<String, DeviceRecord>,
}

impl GpuState {
    /// The state before the run.
    pub(super) fn before_run(run: &Run<'_>, plan: &GpuPlan) -> Self {
        let gpu = run.context.node.gpu_with_uuid(&plan.uuid);
        let mode = gpu.and_then(|gpu| gpu.mig);
        Self {
            mig: mode.is_some_and(|mode| mode.current),
            instances: gpu
                .into_iter()
                .flat_map(|gpu| &gpu.instances)
                .map(|instance| (instance.placement, instance.clone()))
                .collect(),
            daemons: run
                .context
                .node
                .served()
                .filter(|served| {
                    served.run_dir == run.run_dir
                        && served.record.key.gpu == plan.uuid
                        && (served.is_alive() || has_ended_for(plan, served))
                })
                .map(|served| (served.record.uuid.clone(), served.record.clone()))
                .collect(),
        }
    }
}

/// True if this process has closed the device to new programs for the plan, and the daemon has ended.
fn has_ended_for(plan: &GpuPlan, served: &Served) -> bool {
    let uuid = &served.record.uuid;
    let mut actions = plan.steps.iter().map(|step| &step.action);
    served.closer == Closer::ThisProcess
        && actions.any(|action| {
            let start = action.as_start().and_then(|start| start.uuid.as_ref());
            let stop = action.as_stop().map(|stop| &stop.uuid);
            start.or(stop) == Some(uuid)
        })
}

/// A GPU whose MIG mode and instances a run changes.
pub(super) struct ChangingGpu<'a> {
    pub(super) run: &'a Run<'a>,
    pub(super) plan: &'a GpuPlan,
    /// The GPU before the run; `None` if it is gone.
    pub(super) snapshot: Option<&'a Gpu>,
    /// True if MIG mode is on now, or a change to it is pending or may have been made. Like the instances it is tracked
    /// without asking NVML: only this run changes them.
    pub(super) mig: bool,
    /// The GPU instances that exist now.
    pub(super) instances: BTreeMap<Placement, GpuInstanceReading>,
    /// The instances that a call with an unknown outcome may have made, in words, by the placement of the GPU instance.
    pub(super) unknown: BTreeMap<Placement, String>,
    pub(super) rolling_back: bool,
}

impl<'a> ChangingGpu<'a> {
    /// Asks NVML about the GPU.
    pub(super) fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&GpuHandle) -> Result<T, NvmlError> + Send + 'static,
    ) -> Result<T, NvmlError> {
        self.run.nvml_on(&self.plan.uuid, call)
    }

    /// The GPU instance profiles that the GPU offered before the run.
    pub(super) fn offered_profiles(&self) -> &'a [GpuInstanceProfile] {
        self.snapshot.map_or(&[], |gpu| &gpu.profiles)
    }

    /// The interrupt that ends a wait; none during a rollback.
    pub(super) fn interrupt(&self) -> Option<&'a Interrupt> {
        (!self.rolling_back).then_some(&self.run.context.environment.interrupt)
    }
}

/// The course of the run on one GPU. Several threads write it.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The daemons that run now, by the UUIDs of their devices.
    pub(super) daemons: Mutex<BTreeMap<String, DeviceRecord>>,
    /// The number of clients that were terminated with their daemons.
    pub(super) ended_clients: Mutex<usize>,
    /// The plan's steps that succeeded or failed, by number.
    pub(super) ended: Mutex<BTreeMap<usize, Option<FailedStep>>>,
}

impl History {
    pub(super) fn record_start(&self, record: DeviceRecord) {
        lock(&self.daemons).insert(record.uuid.clone(), record);
    }

    /// Records the settings of a daemon that runs.
    pub(super) fn record_change(&self, record: &DeviceRecord) {
        if let Some(daemon) = lock(&self.daemons).get_mut(&record.uuid) {
            daemon.clone_from(record);
        }
    }

    pub(super) fn record_stop(&self, uuid: &str, clients: usize) {
        lock(&self.daemons).remove(uuid);
        *lock(&self.ended_clients) += clients;
    }

    /// True if a step failed.
    pub(super) fn has_failed(&self) -> bool {
        lock(&self.ended).values().any(Option::is_some)
    }

    /// Takes the failures, in the plan's order.
    pub(super) fn take_failures(&self) -> Vec<FailedStep> {
        lock(&self.ended)
            .values_mut()
            .filter_map(Option::take)
            .collect()
    }
}

/// Names a compute instance.
pub(super) fn describe_compute_instance(compute: Placement, parent: Placement) -> String {
    format!("compute instance {compute} of the GPU instance at {parent}")
}
