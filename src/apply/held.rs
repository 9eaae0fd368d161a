//! Looks at the GPUs whose MIG mode a plan switches, before anything is touched.

use super::context::Allowed;
use super::retry::Backoff;
use crate::host::Environment;
use crate::node::Node;
use crate::plan::{Held, Obstacle, Plan};

/// Finds the processes that hold GPUs whose MIG mode the plan switches. Those that cannot be looked at count as held by
/// nobody: the switch itself finds out.
pub fn held(environment: &Environment, node: &Node, plan: &Plan, allowed: Allowed) -> Vec<Held> {
    let gpus = plan.switched(node);
    let numbered = gpus.into_iter().filter_map(|gpu| Some((gpu, gpu.minor?)));
    let (gpus, minors): (Vec<_>, Vec<u32>) = numbered.unzip();
    if minors.is_empty() {
        return Vec::new();
    }
    let holders = environment.host.holders_of(&minors).unwrap_or_default();
    plan.held(node, gpus.into_iter().zip(holders), allowed.stop_holders)
}

/// Waits until no holder is in the way of the plan: an `nvidia-smi` soon exits. Calls `waits` before the first wait.
///
/// # Errors
/// The obstacle that remains.
pub fn wait_for_holders(
    environment: &Environment,
    node: &Node,
    plan: &Plan,
    allowed: Allowed,
    waits: impl FnOnce(&Held),
) -> Result<(), Obstacle> {
    let mut backoff = Backoff::new(Some(&environment.interrupt));
    let mut waits = Some(waits);
    loop {
        let held = held(environment, node, plan, allowed);
        let Some(first) = held.iter().find(|held| held.is_in_the_way) else {
            return Ok(());
        };
        if let Some(waits) = waits.take() {
            waits(first);
        }
        if !backoff.wait() {
            return first.obstacle().map_or(Ok(()), Err);
        }
    }
}
