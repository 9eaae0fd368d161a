//! Limits that the driver sets for a plan.

use super::refusal::{Obstacle, Refusal};
use crate::host::as_root;
use crate::mps::{ContextMemory, ControlProgram};
use crate::node::{Gpu, Node};
use crate::settings::MemoryLimit;

/// Refuses a driver that is too old for any change but the end of what runs.
pub(super) fn too_old(node: &Node) -> Result<(), Refusal> {
    if !node.control_program().is_too_old {
        return Ok(());
    }
    let (driver, first) = (&node.driver, ControlProgram::FIRST);
    let what =
        format!("driver {driver} is too old: mig-mps changes a node with driver {first} or newer");
    let hint = "install a newer driver; mig-mps list, status, check and down work with this one";
    Err(Refusal::NotMeant(Obstacle::new(what, hint)))
}

/// The reason why no program starts with that limit on a whole GPU, if that was measured.
pub(super) fn no_program_starts(node: &Node, gpu: &Gpu, limit: MemoryLimit) -> Option<String> {
    ContextMemory::forbids(limit, &gpu.product, node.control_program().branch)
}

/// Instances that cannot be seen cannot be planned with.
pub(super) fn visible(gpu: &Gpu) -> Result<(), Obstacle> {
    let Some(why) = &gpu.hidden else {
        return Ok(());
    };
    let what = format!("GPU {}: its instances cannot be seen: {why}", gpu.index);
    Err(Obstacle::new(what, as_root()))
}
