//! Checks devices, and heals those that take no programs.

use std::time::{Duration, Instant};

use super::super::Context;
use super::super::change::Change;
use super::super::consent::ConsentArgs;
use super::super::outcome::Outcome;
use crate::apply::OnFailure;
use crate::client::NotReady;
use crate::error::{ExitStatus, Result};
use crate::host::Pool;
use crate::node::{Node, Served, observe_records};
use crate::plan;
use crate::render::note;

/// The time in which devices are to take programs.
const LIMIT: Duration = Duration::from_secs(30);

/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// The most times that devices are healed in one call.
const MOST_HEALS: u32 = 3;

/// The consent of an administrator who has named mig-mps in slurm.conf: changes that disrupt nobody.
pub(super) const CONSENT: ConsentArgs = ConsentArgs {
    dry_run: false,
    yes: true,
    drain: None,
    force: false,
    json: false,
    progress: None,
};

/// A device that takes no programs.
pub(super) struct Unwell {
    pub(super) name: String,
    pub(super) cause: NotReady,
}

type Check<'a> = dyn Fn(&Node, &Served) -> Option<NotReady> + Sync + 'a;

/// Checks the devices with these names, heals those that can be healed without disrupting anybody, and returns the others.
/// A device that is only in use is well.
pub(super) fn heal(
    context: &Context<'_>,
    names: &[String],
    check: &Check<'_>,
) -> Result<Vec<Unwell>> {
    let until = Instant::now() + LIMIT;
    let mut heals = 0;
    let mut is_hopeless = false;
    loop {
        let unwell = unwell(context, names, check)?;
        let is_over = heals == MOST_HEALS || Instant::now() >= until;
        if unwell.is_empty() || is_hopeless || is_over {
            return Ok(unwell);
        }
        let ill: Vec<String> = unwell.iter().map(|one| one.name.clone()).collect();
        match change(context, &ill) {
            Ok(Some(outcome)) if !outcome.is_unchanged => heals += 1,
            // Nothing can be healed, unless the prolog of another job has just done so.
            Ok(Some(outcome)) if !outcome.node.is_changing() => is_hopeless = true,
            // Another change is under way: it may be healing the same device.
            Ok(_) => std::thread::sleep(PAUSE),
            Err(error) if error.kind == ExitStatus::Refused => std::thread::sleep(PAUSE),
            Err(error) => {
                note(&error.message().what);
                return Ok(unwell);
            }
        }
    }
}

fn change(context: &Context<'_>, names: &[String]) -> Result<Option<Outcome>> {
    let directories = context.environment.directories()?;
    let outcome = Change {
        on_failure: OnFailure::GoOn,
        is_unattended: true,
        ..Change::new(context, &directories, &CONSENT, &|node, run_dir| {
            plan::heal(node, run_dir, names)
        })
    }
    .run()?;
    if let Some(failed) = outcome.as_ref().and_then(|outcome| outcome.failed.as_ref()) {
        note(&failed.to_string());
    }
    Ok(outcome)
}

/// Checks the devices side by side.
fn unwell(context: &Context<'_>, names: &[String], check: &Check<'_>) -> Result<Vec<Unwell>> {
    let node = observe_records(context.environment)?;
    let devices = names.iter().filter_map(|name| node.served_as(name));
    let devices: Vec<&Served> = devices.collect();
    let others = devices.len().saturating_sub(1);
    let all = Pool::with(others, devices.len(), |pool| {
        pool.side_by_side(devices, |served, _| {
            check(&node, served).map(|cause| (served.record.name.clone(), cause))
        })
    });
    let unwell = all.into_iter().flatten();
    let unwell = unwell.filter(|(_, cause)| !cause.is_passing());
    Ok(unwell.map(|(name, cause)| Unwell { name, cause }).collect())
}
