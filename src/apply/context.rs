//! What every step of a run may use: what the caller gives the run, the trait it reports to, and the state that its threads
//! share.

use std::sync::atomic::{AtomicBool, Ordering};

use super::journal::{NodeRecord, OpenJournal};
use crate::host::{Directories, Environment, MpsPrograms};
use crate::mps::{Daemon, MpsProcesses};
use crate::node::{Node, Served};
use crate::nvml::{GpuHandle, Nvml, NvmlError};
use crate::plan::{Action, GpuPlan};
use crate::state::{DeviceRecord, RunDir};

/// The surroundings in which a plan is applied.
pub struct ApplyContext<'a> {
    pub environment: &'a Environment,
    /// The run and log directories.
    pub directories: &'a Directories,
    /// The MPS programs.
    pub programs: &'a MpsPrograms,
    /// The node for which the plan was made, read under the lock.
    pub node: &'a Node,
    /// The permissions beyond the plan.
    pub allowed: Allowed,
    /// True for `up` and `down`: another one of these resumes one that was killed.
    pub is_resumable: bool,
}

/// The side effects that a run may have where a step needs them. Each has a flag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Reset a GPU whose MIG mode is pending.
    pub reset: bool,
    /// Stop the known monitoring units that hold a GPU, and start them again.
    pub stop_holders: bool,
    /// Destroy instances that mig-mps is not known to have made, without a question that names them.
    pub destroy_unmanaged: bool,
}

/// A step of a GPU's plan, by its place there.
#[derive(Clone, Copy, Debug)]
pub struct StepOf<'a> {
    pub gpu: &'a GpuPlan,
    /// From 0.
    pub number: usize,
}

impl<'a> StepOf<'a> {
    pub fn action(self) -> &'a Action {
        &self.gpu.steps[self.number].action
    }
}

/// Receives the events of a run, from several threads.
pub trait Progress: Sync {
    /// A step begins.
    fn begin(&self, step: StepOf<'_>);
    /// A step that has begun waits for others, such as `pid 4711 (alice, python train.py)`.
    fn waits(&self, step: StepOf<'_>, others: &str);
    /// A step is over; `is_done` is false if it failed or was interrupted.
    fn end(&self, step: StepOf<'_>, is_done: bool);
    /// The changes made to a GPU are being undone.
    fn undoes(&self, gpu: &GpuPlan);
    /// Something else that the user should know.
    fn note(&self, what: &str);
}

/// The reaction to a failed step or an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Undo the run.
    RollBack,
    /// Undo what was done on that GPU, and continue with the others; undo the run on an interrupt.
    LeaveOut,
    /// Leave the GPU as it is and continue with the others; stop on an interrupt.
    GoOn,
}

/// A run: what its threads share.
#[allow(clippy::struct_field_names, reason = "it is the run directory")]
pub(super) struct Run<'a> {
    pub(super) context: &'a ApplyContext<'a>,
    pub(super) run_dir: RunDir,
    pub(super) node_record: NodeRecord,
    pub(super) journal: OpenJournal,
    /// `None` if the driver did not answer when the plan was made.
    pub(super) nvml: Option<Nvml>,
    /// The MPS processes when the run began.
    pub(super) mps_processes: MpsProcesses,
    pub(super) progress: &'a dyn Progress,
    pub(super) has_failed: AtomicBool,
    pub(super) on_failure: OnFailure,
}

impl<'a> Run<'a> {
    pub(super) fn nvml(&self) -> Result<Nvml, NvmlError> {
        self.nvml.ok_or(NvmlError::NotAsked)
    }

    /// Asks NVML about a device.
    pub(super) fn nvml_on<T: Send + 'static>(
        &self,
        device: &str,
        call: impl FnOnce(&GpuHandle) -> Result<T, NvmlError> + Send + 'static,
    ) -> Result<T, NvmlError> {
        self.nvml()?.supervise_on(device, call)
    }

    /// The device with that UUID, if this run directory has its record.
    pub(super) fn find_served(&self, uuid: &str) -> Option<&'a Served> {
        self.context
            .node
            .served()
            .find(|served| served.record.uuid == uuid && served.run_dir == self.run_dir)
    }

    /// The device with that UUID, if its record cannot be read.
    pub(super) fn find_lost(&self, uuid: &str) -> Option<&'a Served> {
        self.context
            .node
            .lost_records
            .iter()
            .find(|lost| lost.record.uuid == uuid && lost.run_dir == self.run_dir)
    }

    /// True if another GPU's failure, or the user, makes going on pointless.
    pub(super) fn must_stop(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
            || self.context.environment.interrupt.is_interrupted()
    }

    /// Ends the run on every GPU, if a failure is to undo it.
    pub(super) fn mark_failed(&self) {
        if self.on_failure == OnFailure::RollBack {
            self.has_failed.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the daemon of a record, running or not.
    pub(super) fn daemon_of(&self, record: &DeviceRecord) -> Daemon {
        self.daemon_at(&record.uuid)
            .with_devices(record.key.gpus().len())
    }

    /// Returns the daemon of the device with this UUID, for work that is the same on one GPU and on several.
    pub(super) fn daemon_at(&self, uuid: &str) -> Daemon {
        Daemon::new(
            self.context.programs.clone(),
            self.context.node.control_program(),
            self.run_dir.pipe_dir(uuid),
            self.context.directories.log.join(uuid),
        )
    }
}
