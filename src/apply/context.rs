//! The surroundings and the permissions of a run, and the trait it reports to.

use crate::host::{Directories, Environment, MpsPrograms};
use crate::node::Node;
use crate::plan::Action;

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

/// Receives the events of a run, from several threads.
pub trait Progress: Sync {
    /// A step of that GPU begins.
    fn begin(&self, gpu: &str, action: &Action);
    /// A step has succeeded.
    fn end(&self, action: &Action);
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
