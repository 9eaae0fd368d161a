//! Settings that `mig-mps set` changes.

use super::daemons::live_changes;
use super::gate::{Verb, gate};
use super::refusal::{no_program_starts, too_old};
use super::{Obstacle, Plan, Refusal, Set, Step};
use crate::node::{Device, Node, Served};
use crate::profile::SettingAssignment;
use crate::state::RunDir;

/// Plans new settings for the running daemons of devices; an empty plan if they have them.
///
/// # Errors
/// No daemon of `run_dir` serves one, or its daemon takes no settings.
pub fn set(
    node: &Node,
    run_dir: &RunDir,
    names: &[String],
    assignments: &[SettingAssignment],
) -> Result<Plan, Refusal> {
    too_old(node)?;
    let mut plan = Plan::default();
    for name in names {
        let (device, served) = gate(node, run_dir, name, Verb::Set)?;
        if let Some(step) = step_to_set(node, device, served, assignments)? {
            plan.of_gpu(node, &served.record.key.gpu).steps.push(step);
        }
    }
    plan.sort();
    Ok(plan.complete(node, run_dir))
}

fn step_to_set(
    node: &Node,
    device: &Device,
    served: &Served,
    assignments: &[SettingAssignment],
) -> Result<Option<Step>, Refusal> {
    let record = &served.record;
    let mut settings = record.settings.clone();
    for assignment in assignments {
        assignment.change(&mut settings);
    }
    let present = record.settings.pinned_memory_limit;
    let new_limit = settings
        .pinned_memory_limit
        .filter(|limit| present != Some(*limit));
    if let Some(limit) = new_limit
        && let Some(whole_gpu) = node.gpu(&record.uuid)
        && let Some(what) = no_program_starts(node, whole_gpu, limit)
    {
        let obstacle = Obstacle::new(what, "give it more, or \"none\"");
        return Err(Refusal::NotMeant(obstacle));
    }
    let changes = live_changes(served, &settings);
    if changes.is_empty() {
        return Ok(None);
    }
    let mut by_hand = record.by_hand.clone();
    by_hand.extend(changes.iter().map(|change| change.key.to_owned()));
    by_hand.sort_unstable();
    by_hand.dedup();
    let mut step = Set::step(served, settings, changes, by_hand);
    let processes = device.processes.as_ref();
    let memory = processes.and_then(|processes| processes.memory);
    if let (Some(limit), Some(memory)) = (new_limit, memory)
        && limit.bytes() > memory.total
    {
        let mib = memory.total >> 20;
        let remark = format!("the device has {mib} MiB, so this limits nothing");
        step.because = step.because.with(remark);
    }
    Ok(Some(step))
}
