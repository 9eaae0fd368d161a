//! The devices of a job that begins: whether they take its programs, and what heals them.

use std::time::{Duration, Instant};

use crate::apply::OnFailure;
use crate::client::{NoAccess, NotReady, Verified, verify_devices};
use crate::commands::Context;
use crate::commands::args::ConsentArgs;
use crate::commands::change::ChangeOptions;
use crate::commands::change_report::Outcome;
use crate::error::Result;
use crate::failure::ExitStatus;
use crate::host::Uid;
use crate::node::observe_records;
use crate::plan;
use crate::render::warn;

/// The time in which devices are to take programs.
const HEAL_TIMEOUT: Duration = Duration::from_secs(30);

/// The time between two attempts.
const HEAL_INTERVAL: Duration = Duration::from_millis(200);

/// The most times that devices are healed in one call.
const MAX_HEALS: u32 = 3;

/// The consent of an administrator who has named mig-mps in the configuration of a batch system: changes that disrupt nobody.
pub(super) const CONSENT: ConsentArgs = ConsentArgs::UNATTENDED;

/// Checks the devices with these names as this user, or as users that disturb nobody. Heals those that can be
/// healed without disrupting anybody, and returns the others, each with the reason why it accepts no programs. A device that
/// is only in use is ready.
pub fn heal_devices(
    context: &Context<'_>,
    names: &[String],
    user: Option<Uid>,
) -> Result<Vec<(String, NotReady)>> {
    let until = Instant::now() + HEAL_TIMEOUT;
    let mut heals = 0;
    let mut nothing_to_heal = false;
    loop {
        let not_ready = not_ready_devices(context, names, user)?;
        let is_over = heals == MAX_HEALS || Instant::now() >= until;
        if not_ready.is_empty() || nothing_to_heal || is_over {
            return Ok(not_ready);
        }
        let names: Vec<String> = not_ready.iter().map(|(name, _)| name.clone()).collect();
        match heal_once(context, &names) {
            Ok(Some(outcome)) if !outcome.is_unchanged => heals += 1,
            // Nothing can be healed, unless the prolog of another job has just done so.
            Ok(Some(outcome)) if !outcome.node.is_changing() => nothing_to_heal = true,
            // Another change is under way: it may be healing the same device.
            Ok(_) => std::thread::sleep(HEAL_INTERVAL),
            Err(error) if error.status == ExitStatus::Refused => std::thread::sleep(HEAL_INTERVAL),
            Err(error) => {
                warn(&error.message().what);
                return Ok(not_ready);
            }
        }
    }
}

fn heal_once(context: &Context<'_>, names: &[String]) -> Result<Option<Outcome>> {
    let directories = context.environment.directories()?;
    let outcome = ChangeOptions {
        on_failure: OnFailure::GoOn,
        ..ChangeOptions::new(context.environment, &directories, &CONSENT)
    }
    .run_plan(|node, run_dir| plan::heal(node, run_dir, names))?;
    if let Some(failed) = outcome.as_ref().and_then(|outcome| outcome.failed.as_ref()) {
        warn(&failed.to_string());
    }
    Ok(outcome)
}

fn not_ready_devices(
    context: &Context<'_>,
    names: &[String],
    user: Option<Uid>,
) -> Result<Vec<(String, NotReady)>> {
    let node = observe_records(context.environment)?;
    let (mut devices, mut not_ready) = (Vec::new(), Vec::new());
    for name in names {
        match node.served_named(name) {
            Some(served) => devices.push(served),
            // What was closed to new programs may be stopped now.
            None => not_ready.push((
                name.clone(),
                NotReady::from(NoAccess::NotServed {
                    name: name.clone(),
                    state: "it was stopped",
                }),
            )),
        }
    }
    for Verified { name, result, .. } in verify_devices(context.environment, &node, devices, user) {
        if let Err(cause) = result
            && (!cause.is_temporary() || cause.is_closing())
        {
            not_ready.push((name, cause));
        }
    }
    Ok(not_ready)
}
