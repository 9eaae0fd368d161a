//! `mig-mps set`

use anyhow::{Context as _, Result};
use clap::Args;

use super::{NotReadBack, locked, pick_up_interrupted, warn};
use crate::apply::{self, Allowed, OnFailure, Site};
use crate::environment::Environment;
use crate::node::{Look, Node, RunDir, observe};
use crate::plan::{self, Plan};
use crate::profile::Assignment;
use crate::render::Ui;

/// The flags of `set`.
#[derive(Args, Debug)]
pub struct SetArgs {
    /// The device: its name, its UUID, or the unique beginning of that
    device: String,
    /// What to set: active-thread-percentage, pinned-memory-limit, client-priority or max-clients
    #[arg(value_name = "KEY=VALUE", required = true)]
    settings: Vec<Assignment>,
    /// Show what would be set and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Changes settings of a running daemon by hand.
///
/// # Errors
/// See [`Status`](crate::failure::Status) for what each ends the program with.
pub fn run(args: &SetArgs, environment: &Environment, ui: &Ui) -> Result<()> {
    let home = environment.home()?;
    let programs = environment.mps_programs()?;
    let plan = || -> Result<(Node, Vec<String>, Plan)> {
        let node = observe(environment, Look::Close)?;
        let names = node.resolve(std::slice::from_ref(&args.device))?;
        let run_dir = RunDir::at(&home.run);
        let plan = plan::set(&node, &run_dir, &names[0], &args.settings)?;
        Ok((node, names, plan))
    };
    if args.dry_run {
        let (node, _, plan) = plan()?;
        return show(&node, &plan, ui);
    }
    // Who may not change anything here is told so by the plan.
    plan()?;
    pick_up_interrupted(environment, &home, ui)?;
    let _lock = locked(environment, &home)?;
    let (node, names, plan) = plan()?;
    show(&node, &plan, ui)?;
    if plan.is_empty() {
        return Ok(());
    }
    let site = Site {
        environment,
        home: &home,
        programs: &programs,
        node: &node,
        allowed: Allowed::default(),
    };
    apply::run(&plan, &site, &ui.progress(&plan), OnFailure::RollBack)?;
    let after = observe(environment, Look::Close).context(NotReadBack)?;
    ui.status(&after, &names, &[])
}

fn show(node: &Node, plan: &Plan, ui: &Ui) -> Result<()> {
    if plan.is_empty() {
        ui.note("Nothing to do: it is set so.");
        return Ok(());
    }
    warn(Some(node), plan.memory_limits(), ui);
    ui.plan(plan)?;
    ui.consequences(plan)
}
