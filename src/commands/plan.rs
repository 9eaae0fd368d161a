//! `mig-mps plan`

use clap::Args;

use super::accounts::check_accounts;
use super::profile_source::ProfileArgs;
use super::{
    Context, built_in, cdi_file, check_not_newer, detail_for, remark_on_plan,
    report_interrupted_change,
};
use crate::apply::{self, Allowed, OnFailure};
use crate::error::Result;
use crate::failure::ExitStatus;
use crate::host::{Environment, Uid};
use crate::node::{Node, observe};
use crate::plan::{self, LeftOut, Plan, Refusal};
use crate::profile::Profile;
use crate::render::json::PlanDocument;
use crate::render::{self, consequences, note, print, print_json};
use crate::settings::Serve;
use crate::state::RunDir;

/// Show what `up` would do, and what it would disrupt
///
/// Changes nothing. Shows the layout of each GPU now and then, every action with its reason, the
/// clients that would lose their device, and what is in the way.
#[derive(Args, Debug)]
pub struct PlanArgs {
    #[command(flatten)]
    profile: ProfileArgs,
    /// Also stop the daemons of mig-mps on GPUs that no block of the profile selects
    #[arg(long)]
    prune: bool,
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
        note("Planned as root would apply it: only root can serve other users.");
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
    let on_failure = OnFailure::RollBack;
    let held = apply::find_held_gpus(environment, &node, &plan, Allowed::default(), on_failure);
    if args.json {
        print_json(&PlanDocument::from_plan(&plan, &held))?;
    } else if !plan.has_changes() {
        note("Nothing to do: the node is as the profile says.");
    } else {
        print(&render::plan::render(&plan))?;
        print(&consequences::render(&plan, &held, on_failure))?;
    }
    if args.exit_code && plan.has_changes() {
        return Ok(ExitStatus::Drift);
    }
    Ok(ExitStatus::Done)
}

/// What `up` applies.
pub struct UpRequest<'a> {
    pub environment: &'a Environment,
    pub profile: &'a Profile,
    /// The user who applies it.
    pub caller: Uid,
    /// True to stop daemons on GPUs that no block selects.
    pub prune: bool,
}

impl UpRequest<'_> {
    /// Plans to apply the profile, with what becomes of daemons in no block, and of the CDI file; with `left_out` the part of
    /// it that can be applied.
    pub fn plan(
        &self,
        node: &Node,
        run_dir: &RunDir,
        mut left_out: Option<&mut LeftOut>,
    ) -> Result<Plan, Refusal> {
        let (profile, caller) = (self.profile, self.caller);
        let plan = match left_out.as_deref_mut() {
            None => plan::up(node, profile, run_dir, caller)?,
            Some(left_out) => plan::up_in_part(node, profile, run_dir, caller, left_out)?,
        };
        let mut plan =
            plan.prune_or_remark(node, profile, run_dir, self.prune, left_out.as_deref());
        if caller == Uid::ROOT {
            plan.cdi = cdi_file::plan_change(self.environment, node, profile, &plan);
        }
        Ok(plan)
    }
}
