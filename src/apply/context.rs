//! The surroundings and the permissions of a run, and the trait it reports to.

use crate::host::{Directories, Environment, MpsPrograms};
use crate::node::Node;
use crate::plan::{Action, GpuPlan};

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
}

/// The side effects that a run may have where a step needs them. Each has a flag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Reset a GPU whose MIG mode is pending.
    pub reset: bool,
    /// Stop the known monitoring units that hold a GPU, and start them again.
    pub stop_holders: bool,
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
    /// Undo the run, unless only daemons of users other than the caller have failed.
    RollBack,
    /// Leave the GPU as it is and continue with the others; stop on an interrupt.
    GoOn,
}
