//! Settings that `mig-mps set` changes.

use super::daemons::{check_answers, elsewhere, unserved};
use super::driver::no_program_starts;
use super::setting_change::changes;
use super::{Obstacle, Plan, Refusal, Set};
use crate::node::{DaemonState, Node, Served};
use crate::profile::SettingAssignment;
use crate::state::RunDir;

/// Plans new settings for the running daemon of a device; an empty plan if it has them.
///
/// # Errors
/// No daemon of `run_dir` serves it, or its daemon takes no settings.
pub fn set(
    node: &Node,
    run_dir: &RunDir,
    name: &str,
    assignments: &[SettingAssignment],
) -> Result<Plan, Refusal> {
    let served = settable(node, run_dir, name)?;
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
    let mut plan = Plan::default();
    let changes = changes(served, &settings);
    if changes.is_empty() {
        return Ok(plan);
    }
    let mut by_hand = record.by_hand.clone();
    by_hand.extend(changes.iter().map(|change| change.key.to_owned()));
    by_hand.sort_unstable();
    by_hand.dedup();
    let step = Set::step(served, settings, changes, by_hand);
    plan.of_gpu(node, &record.key.gpu).steps.push(step);
    Ok(plan)
}

/// The device of that name, if its daemon takes settings.
fn settable<'a>(node: &'a Node, run_dir: &RunDir, name: &str) -> Result<&'a Served, Obstacle> {
    let refused = |why: &str| {
        Obstacle::new(
            format!("{name} has no daemon to be set: {why}"),
            "start it with mig-mps up and its profile",
        )
    };
    let mut named = node.served.iter();
    let served = named
        .find(|served| served.record.name == name && served.device_is_there)
        .ok_or_else(|| unserved(node, name, "set", refused("mig-mps does not serve it")))?;
    if served.run_dir != *run_dir {
        return Err(elsewhere(served));
    }
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
