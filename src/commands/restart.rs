//! `mig-mps restart`

use std::cell::RefCell;

use anyhow::{Context as _, Result};
use clap::Args;

use super::agreement::Agreement;
use super::drain::{AT_ONCE, Drain, seconds};
use super::{NotReadBack, pick_up_interrupted};
use crate::apply::{self, Allowed, OnFailure, Site};
use crate::environment::Environment;
use crate::node::{Look, Node, Observer, RunDir, observe};
use crate::plan::{self, Plan};
use crate::render::Ui;

/// The flags of `restart`.
#[derive(Args, Debug)]
pub struct RestartArgs {
    /// The devices: a name, a UUID, or the unique beginning of one
    #[arg(value_name = "DEVICE", required = true)]
    devices: Vec<String>,
    /// Show the plan and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask before a daemon that lives is ended
    #[arg(long, short)]
    yes: bool,
    /// Wait for clients to end, at most so long (30, 30s, 5m); new ones are still admitted
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    drain: Option<u32>,
    /// End clients, and a daemon that cannot be asked for them; with --drain, refuse new ones and end
    /// the rest after so many seconds
    #[arg(long)]
    force: bool,
}

/// Ends daemons and starts them again as they are recorded.
///
/// # Errors
/// See [`Status`](crate::failure::Status) for what each ends the program with.
pub fn run(args: &RestartArgs, environment: &Environment, ui: &Ui) -> Result<()> {
    let home = environment.home()?;
    let programs = environment.mps_programs()?;
    let run_dir = RunDir::at(&home.run);
    // One observer: what hangs is not waited for at each look.
    let observer = RefCell::new(Observer::new(environment));
    let plan = || -> Result<(Node, Plan)> {
        let node = observer.borrow_mut().look(Look::Clients)?;
        let plan = plan::restart(&node, &run_dir, &node.resolve(&args.devices)?)?;
        let plan = if args.force {
            plan.by_force(args.drain.unwrap_or(AT_ONCE))
        } else {
            plan
        };
        Ok((node, plan))
    };
    // Who may not change anything here is told so by the plan.
    let (_, mut shown) = plan()?;
    if args.dry_run {
        ui.plan(&shown)?;
        return ui.consequences(&shown);
    }
    if pick_up_interrupted(environment, &home, ui)? {
        (_, shown) = plan()?;
    }
    ui.plan(&shown)?;
    let allowed = Allowed::default();
    let agreement = Agreement {
        environment,
        home: &home,
        ui,
        drain: Drain::of(args.drain.filter(|_| !args.force)),
        yes: args.yes,
        allowed,
        plan: &plan,
        show: &|plan| ui.plan(plan),
    };
    let (_lock, node, plan) = agreement.reach(shown)?;
    let site = Site {
        environment,
        home: &home,
        programs: &programs,
        node: &node,
        allowed,
    };
    apply::run(&plan, &site, &ui.progress(&plan), OnFailure::RollBack)?;
    let after = observe(environment, Look::Close).context(NotReadBack)?;
    ui.status(&after, &after.resolve(&args.devices)?, &[])
}
