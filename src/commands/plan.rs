//! `mig-mps plan`

use std::path::PathBuf;

use clap::Args;

use super::{Context, accounts, detail_for, tell_of_interrupted, warn};
use crate::error::{ExitStatus, Result};
use crate::node::observe;
use crate::plan;
use crate::profile::Profile;
use crate::render::{self, consequences, note, plan_json, print, print_json};
use crate::state::RunDir;

/// Show what `up` would do, and what it would disrupt
///
/// Changes nothing. Shows the layout of each GPU now and then, every action with its reason, the
/// clients that would lose their device, and what is in the way.
#[derive(Args, Debug)]
pub struct PlanArgs {
    /// Profile to plan for (TOML)
    #[arg(value_hint = clap::ValueHint::FilePath)]
    profile: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Exit with 3 when there is something to do
    #[arg(long)]
    exit_code: bool,
}

/// Shows what `up` would do, and what it would disrupt.
pub fn run(args: &PlanArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let environment = context.environment;
    let profile = Profile::load(&args.profile)?;
    accounts::check(&profile)?;
    let directories = RunDir::at(&environment.directories()?.run);
    let node = observe(environment, detail_for(&profile))?;
    let plan = plan::up(&node, &profile, &directories, environment.caller)?;
    tell_of_interrupted(environment);
    if args.json {
        print_json(&plan_json::of(&plan))?;
    } else if plan.is_empty() {
        note("Nothing to do: the node is as the profile says.");
    } else {
        print(&render::plan::text(&plan))?;
        print(&consequences::text(&plan))?;
    }
    if !plan.is_empty() {
        warn(Some(&node), plan.memory_limits());
    }
    if args.exit_code && !plan.is_empty() {
        return Ok(ExitStatus::Drift);
    }
    Ok(ExitStatus::Done)
}
