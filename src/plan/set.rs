//! Settings that `mig-mps set` changes.

use super::daemons::{changes, check_answers, check_ours, recorded};
use super::refusal::{no_program_starts, too_old};
use super::{Obstacle, Plan, Refusal, Set, Step};
use crate::node::{DaemonState, Node, Served, lost_hint};
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
        let served = settable(node, run_dir, name)?;
        if let Some(step) = step(node, served, assignments)? {
            plan.of_gpu(node, &served.record.key.gpu).steps.push(step);
        }
    }
    plan.sort();
    Ok(plan)
}

/// Plans to set back what somebody else has changed in the running daemons of devices. Settings made with `set` stay.
pub fn set_back(node: &Node, run_dir: &RunDir, names: &[String]) -> Result<Plan, Refusal> {
    let mut plan = Plan::default();
    for name in names {
        let served = settable(node, run_dir, name)?;
        let record = &served.record;
        let changes = changes(served, &record.settings);
        if !changes.is_empty() {
            let (settings, by_hand) = (record.settings.clone(), record.by_hand.clone());
            let step = Set::step(served, settings, changes, by_hand);
            plan.of_gpu(node, &record.key.gpu).steps.push(step);
        }
    }
    plan.sort();
    Ok(plan)
}

fn step(
    node: &Node,
    served: &Served,
    assignments: &[SettingAssignment],
) -> Result<Option<Step>, Refusal> {
    let record = &served.record;
    let mut settings = record.settings.clone();
    for assignment in assignments {
        assignment.change(&mut settings);
    }
    let whole = node.gpu(&record.uuid);
    let forbidden = |limit| no_program_starts(node, whole?, limit);
    let limit = settings.pinned_memory_limit;
    let limit = limit.filter(|_| limit != record.settings.pinned_memory_limit);
    if let Some(what) = limit.and_then(forbidden) {
        let obstacle = Obstacle::new(what, "give it more, or \"none\"");
        return Err(Refusal::NotMeant(obstacle));
    }
    let changes = changes(served, &settings);
    if changes.is_empty() {
        return Ok(None);
    }
    let mut by_hand = record.by_hand.clone();
    by_hand.extend(changes.iter().map(|change| change.key.to_owned()));
    by_hand.sort_unstable();
    by_hand.dedup();
    let mut step = Set::step(served, settings, changes, by_hand);
    let processes = node.processes.get(&record.uuid);
    let memory = processes.and_then(|processes| processes.memory);
    if let (Some(limit), Some(memory)) = (limit, memory)
        && limit.bytes() > memory.total
    {
        let (because, mib) = (&step.because, memory.total >> 20);
        step.because = format!("{because}; the device has {mib} MiB, so this limits nothing");
    }
    Ok(Some(step))
}

/// The device of that name, if its daemon takes settings.
fn settable<'a>(node: &'a Node, run_dir: &RunDir, name: &str) -> Result<&'a Served, Obstacle> {
    let refused = |why: &str| {
        Obstacle::new(
            format!("{name} has no daemon whose settings could be changed: {why}"),
            "start it with mig-mps up and its profile",
        )
    };
    let missing = refused("mig-mps does not serve it");
    let served = recorded(node, run_dir, name, "set", missing)?;
    if let Some(why) = served.lost() {
        let what = format!("the device of {name} cannot be seen: {why}");
        return Err(Obstacle::new(what, lost_hint()));
    }
    if served.is_gone() {
        return Err(refused("its device is gone"));
    }
    check_ours(served, run_dir)?;
    if served.state == DaemonState::Dead {
        return Err(refused("it has died"));
    }
    check_answers(served)?;
    if !served.record.finished {
        return Err(Obstacle::new(
            format!("an interrupted change did not finish with the daemon of {name}"),
            "run mig-mps up with its profile, which goes on from there, or mig-mps restart",
        ));
    }
    Ok(served)
}
