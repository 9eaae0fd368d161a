//! Limits that the driver sets for a plan.

use super::refusal::{Obstacle, Refusal};
use crate::host::as_root;
use crate::mps::{ContextMemory, ControlProgram, Support};
use crate::node::{Gpu, Node};
use crate::settings::MemoryLimit;

/// Refuses a driver whose control program lacks what every daemon needs.
pub(super) fn too_old(node: &Node) -> Result<(), Refusal> {
    if node.control_program().support != Support::TooOld {
        return Ok(());
    }
    let first = ControlProgram::FIRST_MEASURED;
    let what = format!(
        "driver {} is too old for MPS: its control program has no memory limits, client priorities, \
         get_server_status, ps or terminate_client",
        node.driver
    );
    let hint = format!("MPS needs driver {first} or newer; mig-mps list works with this one");
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
