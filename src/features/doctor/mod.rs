//! `mig-mps doctor`
//!
//! Checks of the node: why does MIG or MPS not work here?
//!
//! Each file has the checks of one subject as a table. A check judges an [`Examined`] node and returns what it has found.
//! Problems that `status` reports are checks too, by the same ids.

mod check;
mod daemons;
mod directories;
mod driver;
mod gpus;
mod report;
mod surroundings;

use clap::Args;

use crate::client::Verified;
use crate::commands::args::{ConsentArgs, DeviceArgs};
use crate::commands::change::Change;
use crate::commands::{Context, verify};
use crate::error::{Result, usage};
use crate::failure::ExitStatus;
use crate::host::{Environment, bounded, user_name};
use crate::node::{Detail, observe, observe_records};
use crate::plan;
use crate::render::{note, print_json};

use check::{AttachOutcome, AttachedDevice, Diagnosis, Examined, Severity, examine, explain};

pub use check::ids;
pub use report::DoctorDocument;

/// Find out why MIG or MPS does not work here
///
/// Checks driver, GPUs, daemons, directories and surroundings: each check has an id, a verdict, what was seen, why it
/// matters, and a command to paste. A check is unknown where the caller may not see enough: root sees most. Exits with 3
/// if a check fails. Changes nothing without --fix.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    #[command(flatten)]
    devices: DeviceArgs,
    /// Also check that programs become clients of each device, as verify does
    #[arg(long)]
    attach: bool,
    /// Also show what was seen where all is well
    #[arg(long, short)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Explain the id of a check or problem, or the number of a CUDA error
    #[arg(long, value_name = "ID", conflicts_with_all = ["words", "gpus", "attach", "all", "json", "fix"])]
    explain: Option<String>,
    #[command(flatten)]
    fix: FixArgs,
}

/// The safe fixes.
#[derive(Args, Debug)]
struct FixArgs {
    /// Fix what can be fixed without disrupting anybody
    ///
    /// Starts daemons that died, restarts devices that hang without clients, and ends servers without clients that
    /// outlived their daemons.
    #[arg(long, conflicts_with = "json")]
    fix: bool,
    /// With --fix, show the plan and change nothing
    #[arg(long, requires = "fix")]
    dry_run: bool,
    /// With --fix, do not ask
    #[arg(long, short, requires = "fix")]
    yes: bool,
}

/// Examines the node.
pub fn run(args: &DoctorArgs, context: &Context<'_>) -> Result<ExitStatus> {
    if let Some(word) = &args.explain {
        return explained(word);
    }
    let environment = context.environment;
    if args.fix.fix && !fix(args, context)? {
        return Ok(ExitStatus::Done);
    }
    let all = examined(args, environment)?;
    if args.json {
        print_json(&DoctorDocument::of(&all))?;
    } else {
        report::print(&all, args.all)?;
    }
    let fails = all.iter().any(|one| one.severity() == Severity::Fail);
    Ok(if fails {
        ExitStatus::Drift
    } else {
        ExitStatus::Done
    })
}

fn explained(word: &str) -> Result<ExitStatus> {
    match explain(word) {
        Ok(explanation) => {
            report::explain(&explanation)?;
            Ok(ExitStatus::Done)
        }
        Err(near) => {
            let near = near.map(|near| format!(" (did you mean \"{near}\"?)"));
            let what = format!(
                "no check or error is called \"{}\"{}",
                bounded(word),
                near.unwrap_or_default()
            );
            let error = usage(what);
            Err(error.hint("mig-mps help diagnosis lists all"))
        }
    }
}

fn examined(args: &DoctorArgs, environment: &Environment) -> Result<Vec<Diagnosis>> {
    // A device that hangs shows it once it is asked.
    let attached = if args.attach {
        Some(attach(args, environment)?)
    } else {
        None
    };
    let node = observe(environment, Detail::DOCTOR)?;
    let devices = args.devices.names(&node)?;
    Ok(examine(&Examined::new(
        environment,
        &node,
        &devices,
        attached,
    )))
}

/// Becomes a client of each device for a moment.
fn attach(args: &DoctorArgs, environment: &Environment) -> Result<Vec<AttachedDevice>> {
    verify::prepare(environment)?;
    let node = observe_records(environment)?;
    let is_all = args.devices.is_empty();
    // A device without a daemon has no record.
    let names = args.devices.names(&node).unwrap_or_default();
    let served = node
        .served()
        .filter(|served| is_all || names.contains(&served.record.name));
    let verified = verify::all(environment, &node, served.collect());
    Ok(verified.into_iter().map(attached).collect())
}

fn attached(one: Verified) -> AttachedDevice {
    let result = match one.result {
        Ok(ready) => AttachOutcome::Attached(format!(
            "attached in {} ms as {}",
            ready.attached.time.as_millis(),
            user_name(ready.attached.user)
        )),
        Err(cause) if cause.is_unchecked() => AttachOutcome::LeftAlone(cause.to_string()),
        Err(cause) => AttachOutcome::Failed(cause.to_string(), cause.remedy()),
    };
    AttachedDevice {
        name: one.name,
        result,
    }
}

/// Does what disrupts nobody. Returns false if it was only to be shown.
fn fix(args: &DoctorArgs, context: &Context<'_>) -> Result<bool> {
    let environment = context.environment;
    environment.mps_programs()?;
    let directories = environment.directories()?;
    let consent = ConsentArgs {
        dry_run: args.fix.dry_run,
        yes: args.fix.yes,
        drain: None,
        force: false,
        json: false,
        progress: None,
    };
    let changed = Change::new(context, &directories, &consent, &|node, run_dir| {
        plan::mend(node, run_dir, &args.devices.names(node)?)
    })
    .run()?;
    let Some(outcome) = changed else {
        return Ok(false);
    };
    if outcome.is_unchanged {
        note("Nothing can be fixed without disrupting anybody.");
    }
    Ok(true)
}
