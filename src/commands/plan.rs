//! `mig-mps plan`

use clap::Args;

use super::accounts::check_accounts;
use super::profile_source::ProfileArgs;
use super::up_request::UpRequest;
use super::{
    Context, built_in, cdi_file, check_not_newer, describe_match, detail_for, remark_on_plan,
    report_interrupted_change, warn_of_unknown_pods,
};
use crate::apply::{self, Allowed, OnFailure};
use crate::error::Result;
use crate::failure::ExitStatus;
use crate::host::{Uid, sudo_mig_mps};
use crate::node::observe;
use crate::plan::{HeldGpus, Plan, Refusal};
use crate::render::json::PlanDocument;
use crate::render::{
    self, consequences, examples_and_statuses, note, print, print_json, print_lines, report,
};
use crate::settings::Serve;
use crate::state::RunDir;

/// Show what `up` would change, and what it would disrupt
///
/// Shows the layout of each GPU before and after the change, each step with its reason, the clients that would lose their
/// device, and the obstacles to the change. Changes nothing.
#[derive(Args, Debug)]
#[command(after_help = examples_and_statuses(&[
    ("mig-mps plan profile.toml", "Preview the changes"),
    ("mig-mps plan --exit-code", "Check for drift in a script"),
], &[("3", "the node needs a change (with --exit-code)"), ("5", "the profile does not fit")]))]
pub struct PlanArgs {
    #[command(flatten)]
    profile: ProfileArgs,
    /// Also stop daemons on GPUs that the profile does not select
    #[arg(long, help_heading = "Plan")]
    prune: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Exit with status 3 if the node needs a change
    #[arg(long)]
    exit_code: bool,
}

/// Shows what `up` would do, and what it would disrupt.
pub fn run(args: &PlanArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let environment = context.environment;
    let profile = args.profile.load(environment)?.profile;
    cdi_file::check_writable(&profile, environment)?;
    // A plain user's daemon serves nobody else.
    let is_roots =
        !environment.is_root() && profile.serves.iter().any(|(serve, _)| *serve != Serve::Own);
    let caller = if is_roots {
        Uid::ROOT
    } else {
        environment.caller
    };
    check_accounts(&profile, environment, caller)?;
    let run_dir = if is_roots {
        note("planned as root would apply it, because only root can serve other users");
        environment.roots_run_dir()
    } else {
        environment.directories()?.run
    };
    let run_dir = RunDir::at(&run_dir);
    check_not_newer(&run_dir)?;
    let node = observe(environment, detail_for(&profile))?;
    let request = UpRequest {
        environment,
        profile: &profile,
        caller,
        prune: args.prune,
    };
    let mut plan = request
        .plan(&node, &run_dir, None)
        .map_err(|refusal| {
            let gpus = || built_in::gpus_of_node(environment);
            built_in::suggest_fitting_profiles(&profile, refusal.into(), gpus)
        })?
        .with_remarks_on_devices(&node)
        .sparing_unmanaged();
    if !is_roots {
        let directories = environment.directories()?;
        apply::check_starts(&mut plan, environment, &directories, &node)
            .map_err(|error| Refusal::CannotStart(error.into()))?;
    }
    report_interrupted_change(environment);
    remark_on_plan(&node, &plan);
    warn_of_unknown_pods(&node, &plan);
    let on_failure = OnFailure::RollBack;
    let held = apply::find_held_gpus(environment, &node, &plan, Allowed::default(), on_failure);
    if args.json {
        print_json(&PlanDocument::from_plan(&plan, &held))?;
    } else if !plan.has_changes() {
        report(&describe_match(&plan));
    } else {
        print(&render::plan::render(&plan))?;
        print(&consequences::render(&plan, &held, on_failure))?;
        print_summary(args, &plan, &held, is_roots, environment.caller)?;
    }
    let is_lost = !plan.lost_gpus.is_empty();
    if args.exit_code && (is_lost || plan.differs_from_node()) {
        return Ok(ExitStatus::Drift);
    }
    Ok(ExitStatus::Done)
}

/// Ends the plan with a summary, and says how it is applied.
fn print_summary(
    args: &PlanArgs,
    plan: &Plan,
    held: &[HeldGpus],
    is_roots: bool,
    caller: Uid,
) -> Result<()> {
    print_lines(&format!("\n{}", render::plan::summary(plan)))?;
    let is_in_the_way = plan.gpus.iter().any(|gpu| !gpu.obstacles.is_empty())
        || plan.stops().any(|stop| stop.unasked.is_some());
    if is_in_the_way {
        return print_lines("`up` refuses this plan while programs are in the way.")
            .map_err(Into::into);
    }
    // A plain user's own daemons run on instances that are there.
    if !is_roots && caller != Uid::ROOT && plan.changes_mig() {
        return print_lines("Only root can change MIG.").map_err(Into::into);
    }
    if let Some(command) = command_to_apply(args, plan, is_roots) {
        let stop = if held.iter().any(HeldGpus::needs_stopped_services) {
            " --stop-holders"
        } else {
            ""
        };
        print(&format!("Apply with: {command}{stop}\n"))?;
    }
    Ok(())
}

/// Returns the command that applies the plan; `None` if it cannot be told from the command line.
fn command_to_apply(args: &PlanArgs, plan: &Plan, is_roots: bool) -> Option<String> {
    let program = if is_roots {
        sudo_mig_mps()
    } else {
        "mig-mps".to_owned()
    };
    let prune = if args.prune { " --prune" } else { "" };
    let is_waited_for =
        plan.clients_in_the_way().next().is_some() || plan.pods_in_the_way().next().is_some();
    let drain = if is_waited_for { " --drain 1h" } else { "" };
    let up = args.profile.up_arguments(!is_roots)?;
    Some(format!("{program} {up}{prune}{drain}"))
}
