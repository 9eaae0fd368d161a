//! `mig-mps up`

use std::cell::RefCell;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;

use super::agreement::{Agreement, HINT};
use super::drain::{AT_ONCE, Drain, seconds};
use super::{NotAsWanted, NotReadBack, accounts, large_logs, look_for, pick_up_interrupted, warn};
use crate::apply::{self, Allowed, ApplyError, OnFailure, Site};
use crate::environment::{Environment, Home, MpsPrograms};
use crate::mps::{MAX_PIPE_DIR, MpsError};
use crate::node::{Node, Observer, RunDir};
use crate::plan::{self, Action, Plan};
use crate::profile::{Profile, Serve};
use crate::render::Ui;

/// The flags of `up`.
#[derive(Args, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "they are flags")]
pub struct UpArgs {
    /// What is wanted (TOML)
    #[arg(value_hint = clap::ValueHint::FilePath)]
    profile: PathBuf,
    /// Show the plan and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask before something that runs is disturbed or destroyed
    #[arg(long, short)]
    yes: bool,
    /// Wait for clients that are in the way to end, at most so long (30, 30s, 5m)
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    drain: Option<u32>,
    /// End clients that are in the way; with --drain, refuse new ones and end the rest after so
    /// many seconds
    #[arg(long)]
    force: bool,
    /// Reset a GPU whose MIG mode can only be switched so
    #[arg(long)]
    reset: bool,
    /// Stop the monitoring services that hold a GPU (DCGM, NVSM, exporters, nvidia-persistenced)
    /// while its MIG mode is switched, and start them again
    #[arg(long)]
    stop_holders: bool,
    /// Print JSON: the plan, what is there then, and whether anything was changed
    #[arg(long)]
    json: bool,
}

/// Brings the node to what the profile asks for.
///
/// # Errors
/// See [`Status`](crate::failure::Status) for what each ends the program with.
pub fn run(args: &UpArgs, environment: &Environment, ui: &Ui) -> Result<()> {
    let profile = Profile::load(&args.profile)?;
    accounts::check(&profile)?;
    let up = Up {
        args,
        profile: &profile,
        environment,
        ui,
        home: environment.home()?,
        programs: environment.mps_programs()?,
        observer: RefCell::new(Observer::new(environment)),
    };
    let drain = Drain::of(args.drain.filter(|_| !args.force));
    up.check_pipe_dirs()?;
    accounts::check_ways(&profile, &up.home)?;
    if !args.dry_run {
        pick_up_interrupted(environment, &up.home, ui)?;
    }
    let (node, planned) = up.plan()?;
    if planned.is_empty() {
        ui.note("Nothing to do: the node is as the profile says.");
        if args.dry_run && !args.json {
            return Ok(());
        }
        if !args.dry_run {
            large_logs::put_aside(&node, &up.home, environment, ui);
        }
        return up.report(&node, &planned, false);
    }
    warn(Some(&node), planned.memory_limits(), ui);
    if args.dry_run && args.json {
        return ui.plan_json(&planned);
    }
    up.show(&planned)?;
    if args.dry_run {
        return Ok(());
    }
    let agreement = Agreement {
        environment,
        home: &up.home,
        ui,
        drain,
        yes: args.yes,
        allowed: up.allowed(),
        plan: &|| up.plan(),
        show: &|plan| up.show(plan),
    };
    let (_lock, mut node, mut plan) = agreement.reach(planned)?;
    let changes = !plan.is_empty();
    let mut carried_out = plan.clone();
    // Twice only where a driver lists profiles after MIG has been switched on.
    loop {
        let failed = if plan.is_empty() {
            None
        } else {
            up.apply(&node, &plan)?
        };
        let read_back = up.plan();
        let goes_on = plan.gpus.iter().any(|gpu| gpu.to_be_continued);
        // Where it goes on, the rest tries it again.
        if let Some(error) = failed.filter(|_| !goes_on) {
            if let Ok((after, _)) = &read_back {
                up.report(after, &carried_out, changes)?;
            }
            return Err(error.into());
        }
        let (after, rest) = if changes {
            read_back.context(NotReadBack)?
        } else {
            read_back?
        };
        if rest.is_empty() {
            up.record(&after)
                .context("the node is as the profile says, but its name cannot be noted")?;
            large_logs::put_aside_under_lock(&after, &up.home, environment, ui);
            up.report(&after, &carried_out, changes)?;
            ui.beside(&carried_out);
            remark(&after, &carried_out, ui);
            return Ok(());
        }
        if !goes_on {
            return Err(NotAsWanted(steps(&rest)).into());
        }
        up.show(&rest)?;
        rest.permit(HINT)
            .context("MIG mode is on now, and the rest of the profile is refused")?;
        carried_out.go_on_with(&rest);
        (node, plan) = (after, rest);
    }
}

struct Up<'a> {
    args: &'a UpArgs,
    profile: &'a Profile,
    environment: &'a Environment,
    ui: &'a Ui,
    home: Home,
    programs: MpsPrograms,
    /// One for all looks: what hangs is not waited for at each of them.
    observer: RefCell<Observer<'a>>,
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
        let node = self.observer.borrow_mut().look(look_for(self.profile))?;
        let home = RunDir::at(&self.home.run);
        let plan = plan::up(&node, self.profile, &home, self.environment.caller)?;
        let plan = if self.args.force {
            plan.by_force(self.args.drain.unwrap_or(AT_ONCE))
        } else {
            plan
        };
        Ok((node, plan))
    }

    fn allowed(&self) -> Allowed {
        Allowed {
            reset: self.args.reset,
            stop_holders: self.args.stop_holders,
        }
    }

    fn show(&self, plan: &Plan) -> Result<()> {
        if self.args.json {
            return Ok(());
        }
        self.ui.plan(plan)
    }

    /// Carries a plan out. Returns the failure of users' daemons, if everything else was done.
    fn apply(&self, node: &Node, plan: &Plan) -> Result<Option<ApplyError>> {
        let site = Site {
            environment: self.environment,
            home: &self.home,
            programs: &self.programs,
            node,
            allowed: self.allowed(),
        };
        let progress = self.ui.progress(plan);
        match apply::run(plan, &site, &progress, OnFailure::RollBack) {
            Ok(()) => Ok(None),
            Err(error) if error.is_of_users_alone() => Ok(Some(error)),
            Err(error) => Err(error.into()),
        }
    }

    fn record(&self, node: &Node) -> Result<()> {
        let name = self.profile.name.clone();
        let name = name.unwrap_or_else(|| self.profile.source.path().display().to_string());
        let run_dir = RunDir::at(&self.home.run);
        Ok(apply::record_profile(&run_dir, &node.boot_id, Some(name))?)
    }

    fn report(&self, node: &Node, plan: &Plan, changed: bool) -> Result<()> {
        if self.args.json {
            self.ui.up_json(node, plan, changed)
        } else {
            self.ui.status(node, &[], &[])
        }
    }
}

/// What the MPS default surprises people with, said when daemons are started.
fn remark(node: &Node, plan: &Plan, ui: &Ui) {
    let one_at_a_time = plan.steps().any(
        |step| matches!(&step.action, Action::Start(start) if *start.serve() == Serve::OneAtATime),
    );
    if one_at_a_time {
        let how_to_share = if node.control_program().has_multiuser_server {
            " serve = \"all\" lets users share."
        } else {
            ""
        };
        ui.note(&format!(
            "These devices serve one user at a time: a second user's program waits in cuInit until \
             the first user's have gone.{how_to_share}"
        ));
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
