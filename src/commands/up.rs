//! `mig-mps up`

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::{NotAsWanted, locked, pick_up_interrupted};
use crate::apply::{self, Allowed, OnFailure, Site};
use crate::environment::{Environment, Home, MpsPrograms};
use crate::mps::{MAX_PIPE_DIR, MpsError};
use crate::node::{Look, Node, RunDir, observe};
use crate::plan::{self, Action, Plan};
use crate::profile::{Profile, Serve};
use crate::render::{Consent, Ui};

/// The flags of `up`.
#[derive(Args, Debug)]
pub struct UpArgs {
    /// What is wanted (TOML)
    #[arg(value_hint = clap::ValueHint::FilePath)]
    profile: PathBuf,
    /// Show the plan and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask before something that runs is disturbed
    #[arg(long, short)]
    yes: bool,
}

/// Brings the node to what the profile asks for.
///
/// # Errors
/// See [`Status`](crate::failure::Status) for what each ends the program with.
pub fn run(args: &UpArgs, environment: &Environment, ui: &Ui) -> Result<()> {
    let profile = Profile::load(&args.profile)?;
    let up = Up {
        profile: &profile,
        environment,
        home: environment.home()?,
        programs: environment.mps_programs()?,
        consent: if args.yes {
            Consent::Given
        } else {
            Consent::Ask
        },
    };
    up.check_pipe_dirs()?;
    if !args.dry_run {
        pick_up_interrupted(environment, &up.home, ui)?;
    }
    let (mut node, mut plan) = up.plan()?;
    if plan.is_empty() {
        ui.note("Nothing to do: the node is as the profile says.");
        return if args.dry_run {
            Ok(())
        } else {
            ui.status(&node, &[])
        };
    }
    ui.plan(&plan)?;
    if args.dry_run {
        return Ok(());
    }
    ui.confirm(&plan, up.consent)?;
    let _lock = locked(environment, &up.home)?;
    // Twice only where a driver lists profiles after MIG has been switched on.
    loop {
        (node, plan) = up.still_agreed(plan, ui)?;
        if !plan.is_empty() {
            up.apply(&plan, &node, ui)?;
        }
        let (after, rest) = up.plan()?;
        if rest.is_empty() {
            up.record(&after)?;
            ui.status(&after, &[])?;
            remark(&plan, ui);
            return Ok(());
        }
        if !plan.gpus.iter().any(|gpu| gpu.to_be_continued) {
            return Err(NotAsWanted(steps(&rest)).into());
        }
        ui.plan(&rest)?;
        plan = rest;
    }
}

struct Up<'a> {
    profile: &'a Profile,
    environment: &'a Environment,
    home: Home,
    programs: MpsPrograms,
    consent: Consent,
}

impl Up<'_> {
    /// Refuses a run directory in which no MIG device's sockets could be addressed.
    fn check_pipe_dirs(&self) -> Result<()> {
        let example = format!("MIG-{}", "0".repeat(36));
        let pipe = RunDir::at(&self.home.run).pipe_dir(&example);
        if pipe.as_os_str().len() > MAX_PIPE_DIR {
            return Err(MpsError::PathTooLong(pipe).into());
        }
        Ok(())
    }

    fn plan(&self) -> Result<(Node, Plan)> {
        let node = observe(self.environment, Look::Close)?;
        let home = RunDir::at(&self.home.run);
        let plan = plan::up(&node, self.profile, &home, self.environment.caller)?;
        Ok((node, plan))
    }

    /// Plans again under the lock, and asks again if the node has changed under the plan shown.
    fn still_agreed(&self, mut shown: Plan, ui: &Ui) -> Result<(Node, Plan)> {
        loop {
            let (node, plan) = self.plan()?;
            if plan == shown {
                return Ok((node, plan));
            }
            if plan.is_empty() {
                ui.note("The node has become as the profile says meanwhile.");
                return Ok((node, plan));
            }
            ui.note("The node has changed meanwhile. The plan is now:");
            ui.plan(&plan)?;
            let consent = if plan.disturbs_more_than(&shown) {
                Consent::Ask
            } else {
                self.consent
            };
            ui.confirm(&plan, consent)?;
            shown = plan;
        }
    }

    fn apply(&self, plan: &Plan, node: &Node, ui: &Ui) -> Result<()> {
        let site = Site {
            environment: self.environment,
            home: &self.home,
            programs: &self.programs,
            node,
            allowed: Allowed::default(),
        };
        Ok(apply::run(
            plan,
            &site,
            &ui.progress(plan),
            OnFailure::RollBack,
        )?)
    }

    fn record(&self, node: &Node) -> Result<()> {
        let name = self.profile.name.clone();
        let name = name.unwrap_or_else(|| self.profile.source.path().display().to_string());
        let run_dir = RunDir::at(&self.home.run);
        Ok(apply::record_profile(&run_dir, &node.boot_id, Some(name))?)
    }
}

/// What the MPS default surprises people with, said when daemons are started.
fn remark(plan: &Plan, ui: &Ui) {
    let one_at_a_time = plan.steps().any(
        |step| matches!(&step.action, Action::Start(start) if start.serve == Serve::OneAtATime),
    );
    if one_at_a_time {
        ui.note(
            "These devices serve one user at a time: a second user's program waits in cuInit until \
             the first user's have gone. serve = \"all\" lets users share.",
        );
    }
}

fn steps(plan: &Plan) -> String {
    plan.gpus
        .iter()
        .flat_map(|gpu| gpu.steps.iter().map(move |step| (gpu.index, step)))
        .fold(String::new(), |mut text, (gpu, step)| {
            let _ = write!(text, "\n  GPU {gpu}: {}: {}", step.action, step.because);
            text
        })
}
