//! `mig-mps up`

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;

use super::accounts::{check_accounts, find_unserved_users};
use super::after_change::{follow_change, note_change};
use super::args::{ConsentArgs, NoNewArgs, REFUSED_STATUS};
use super::cdi::remark_on_nvidias_file;
use super::cdi_file::{self, CdiRequest};
use super::change::{Change, ChangeOptions};
use super::change_report::Outcome;
use super::profile_source::ProfileArgs;
use super::up_request::UpRequest;
use super::{
    Context, built_in, describe_match, detail_for, lock_node, own_directories, remark_on_plan,
    verify,
};
use crate::apply::{self, Allowed, OnFailure};
use crate::client::{Verified, verify_devices};
use crate::config::MIG_MANAGER_UNIT;
use crate::error::{CommandError, Result};
use crate::failure::ExitStatus;
use crate::host::{Directories, Environment, quote_for_shell, report_ready, strip_needless_sudo};
use crate::mps::{MAX_PIPE_DIR, MpsError};
use crate::node::{Device, Node, Served};
use crate::plan::{LeftOut, Plan, Refusal, Start};
use crate::profile::{Profile, is_of_pod};
use crate::render::{self, consequences, examples_and_statuses, note, print, report, warn};
use crate::settings::Serve;
use crate::state::RunDir;

/// Apply a profile to this node
///
/// Compares the profile with the node, shows a plan and carries it out. Ends running clients only with --force; --drain
/// waits for them. If a step fails, the changes are undone. The result is read back from the hardware. Applying the same
/// profile again changes nothing.
#[derive(Args, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "they are flags")]
#[command(after_help = examples_and_statuses(&[
    ("mig-mps up profile.toml --dry-run", "Preview the changes"),
    ("sudo mig-mps up profile.toml --drain 10m", "Wait for clients, then apply"),
    ("sudo mig-mps up --previous", "Return to the previous profile"),
], &[("3", "a reset or a reboot is pending"), REFUSED_STATUS, ("5", "the profile does not fit")]))]
pub struct UpArgs {
    #[command(flatten)]
    profile: ProfileArgs,
    #[command(flatten)]
    consent: ConsentArgs,
    #[command(flatten)]
    no_new: NoNewArgs,
    /// Reset a GPU if its MIG mode cannot change otherwise
    #[arg(long, help_heading = "MIG")]
    reset: bool,
    /// Stop monitoring services during the change
    #[arg(long, help_heading = "MIG")]
    stop_holders: bool,
    /// Also stop daemons on GPUs that the profile does not select
    #[arg(long, help_heading = "Plan")]
    prune: bool,
    /// Also destroy instances that mig-mps did not create
    #[arg(long, help_heading = "MIG")]
    destroy_unmanaged: bool,
    /// Skip what cannot be applied, and exit with status 1
    #[arg(long, conflicts_with_all = ["drain", "no_new"], help_heading = "Failures")]
    keep_going: bool,
    /// Test afterwards that CUDA programs connect to each device
    #[arg(long, help_heading = "Failures")]
    verify: bool,
}

/// Applies the profile to the node, and runs the programs that follow.
pub fn run(args: &UpArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let applied = apply_profile(args, context.environment);
    if args.consent.dry_run {
        return applied;
    }
    let status = follow_change(applied, context.environment)?;
    if status == ExitStatus::Done
        && let Err(error) = report_ready()
    {
        warn(&format!("cannot report to systemd: {error}"));
    }
    Ok(status)
}

fn apply_profile(args: &UpArgs, environment: &Environment) -> Result<ExitStatus> {
    let chosen = args.profile.load(environment)?;
    let directories = check_preconditions(args, &chosen.profile, environment)?;
    let changed = change_node(args, environment, &chosen.profile, &directories).map_err(|error| {
        let gpus = || built_in::gpus_of_node(environment);
        built_in::suggest_fitting_profiles(&chosen.profile, error, gpus)
    });
    let Some(mut outcome) = changed? else {
        return Ok(ExitStatus::Done);
    };
    // What follows the change, after the CDI file (`change/carry_out.rs`).
    let is_of_nothing = outcome.has_applied_nothing(&chosen.profile, &directories.run);
    if !args.consent.dry_run {
        outcome.note_missing_parts(is_of_nothing, args.consent.json);
        if !is_of_nothing {
            chosen.record(environment, &directories, &outcome);
        }
    }
    let _ = note_change(environment, &outcome);
    if outcome.is_unchanged {
        let status = report_unchanged(args, environment, &directories, outcome)?;
        remark_on_boot(args, environment, &chosen.profile);
        return Ok(status);
    }
    rotate_large_logs_under_lock(environment, &directories, &outcome.node);
    report_change(args, environment, &chosen.profile, outcome)
}

/// Changes the node; `None` if the plan was only to be shown.
fn change_node(
    args: &UpArgs,
    environment: &Environment,
    profile: &Profile,
    directories: &Directories,
) -> Result<Option<Outcome>> {
    let mut change = UpChange(UpRequest {
        environment,
        profile,
        caller: environment.caller,
        prune: args.prune,
    });
    let (on_failure, left_out) = if args.keep_going {
        let unserved = find_unserved_users(profile, environment);
        (OnFailure::LeaveOut, LeftOut::with_unserved(unserved))
    } else {
        (OnFailure::RollBack, LeftOut::default())
    };
    ChangeOptions {
        allowed: Allowed {
            reset: args.reset,
            stop_holders: args.stop_holders,
            destroy_unmanaged: args.destroy_unmanaged,
        },
        no_new: args.no_new.no_new,
        on_failure,
        left_out,
        detail: detail_for(profile),
        is_resumable: true,
        ..ChangeOptions::new(environment, directories, &args.consent)
    }
    .run(&mut change)
}

/// The change that applies a profile.
struct UpChange<'a>(UpRequest<'a>);

impl Change for UpChange<'_> {
    fn plan(
        &mut self,
        node: &Node,
        run_dir: &RunDir,
        left_out: Option<&mut LeftOut>,
    ) -> Result<Plan, Refusal> {
        let plan = self.0.plan(node, run_dir, left_out)?;
        Ok(plan.with_remarks_on_devices(node))
    }

    fn remark(&self, node: &Node, plan: &Plan) {
        remark_on_plan(node, plan);
    }

    fn is_verified(&self) -> bool {
        true
    }

    fn cdi_request(&self) -> CdiRequest {
        CdiRequest::from_profile(self.0.profile)
    }
}

/// Refuses what cannot be applied by this user, before anything is planned. Returns the directories of the change.
fn check_preconditions(
    args: &UpArgs,
    profile: &Profile,
    environment: &Environment,
) -> Result<Directories> {
    if !args.keep_going {
        check_accounts(profile, environment, environment.caller)?;
    }
    if args.verify {
        verify::prepare_check(environment)?;
    }
    let directories = own_directories(environment, &args.consent)?;
    cdi_file::check_allowed(profile, environment)?;
    cdi_file::check_writable(profile, environment)?;
    if profile.daemon_settings().next().is_some() {
        environment.mps_programs()?;
    }
    check_pipe_dirs(&directories)?;
    Ok(directories)
}

/// Ends where there was nothing to do.
fn report_unchanged(
    args: &UpArgs,
    environment: &Environment,
    directories: &Directories,
    outcome: Outcome,
) -> Result<ExitStatus> {
    let node = &outcome.node;
    remark_on_plan(node, &outcome.plan);
    match outcome.plan.cdi {
        None if outcome.plan.missing.is_empty() => {
            report(&describe_match(&outcome.plan));
        }
        _ if args.consent.dry_run && args.consent.json => {}
        _ if args.consent.dry_run => print(&render::plan::render(&outcome.plan))?,
        Some(change) if outcome.deferred_error.is_none() => {
            report(cdi_file::change_message(change));
        }
        _ => {}
    }
    if !args.consent.dry_run {
        rotate_large_logs(environment, directories, node);
    }
    let verified = verify_if_asked(args, environment, node)?;
    if !args.consent.dry_run || args.consent.json {
        outcome.report(environment, &[], &args.consent, verified.as_deref())?;
    }
    finish_command(args, outcome.deferred_error, verified.as_deref())
}

/// Shows the node after the change, with remarks on what is new to its users, and checks the devices if asked.
fn report_change(
    args: &UpArgs,
    environment: &Environment,
    profile: &Profile,
    outcome: Outcome,
) -> Result<ExitStatus> {
    let (node, plan) = (&outcome.node, &outcome.successful_plan());
    let mut verified = None;
    if args.consent.json {
        // The document has the result.
        verified = verify_if_asked(args, environment, node)?;
    }
    outcome.report(environment, &[], &args.consent, verified.as_deref())?;
    consequences::note_unmanaged(plan);
    remark_on_one_at_a_time(node, plan);
    remark_on_pods(environment, plan);
    remark_on_mig_manager(environment);
    outcome.print_summary(&[], &args.consent);
    if outcome.deferred_error.is_none() {
        remark_on_next_steps(args, environment, node, plan);
    }
    remark_on_boot(args, environment, profile);
    if !args.consent.json {
        let present = node
            .existing_devices()
            .flat_map(Device::driver_uuids)
            .map(String::as_str);
        remark_on_nvidias_file(environment, present);
        environment.interrupt.allow_exit();
        verified = verify_if_asked(args, environment, node)?;
    }
    finish_command(args, outcome.deferred_error, verified.as_deref())
}

/// Shows the checked devices, and ends with the deferred error.
fn finish_command(
    args: &UpArgs,
    deferred_error: Option<CommandError>,
    verified: Option<&[Verified]>,
) -> Result<ExitStatus> {
    let mut status = ExitStatus::Done;
    if let Some(verified) = verified {
        if args.consent.json {
            render::verified::print_failures(verified);
        } else {
            render::verified::print(verified)?;
        }
        status = verify::exit_status(verified);
    }
    if let Some(error) = deferred_error {
        return Err(error.already_in_json());
    }
    Ok(status)
}

/// Checks the devices if asked.
fn verify_if_asked(
    args: &UpArgs,
    environment: &Environment,
    node: &Node,
) -> Result<Option<Vec<Verified>>> {
    if !args.verify || args.consent.dry_run {
        return Ok(None);
    }
    let own = environment.directories()?.run;
    let devices = node
        .served()
        .filter(|served| served.run_dir.path() == own)
        .collect();
    // Each as a user that disturbs nobody.
    Ok(Some(verify_devices(environment, node, devices, None)))
}

/// Refuses a run directory in which no MIG device's sockets could be addressed.
fn check_pipe_dirs(directories: &Directories) -> Result<()> {
    let example = format!("MIG-{}", "0".repeat(36));
    let pipe = RunDir::at(&directories.run).pipe_dir(&example);
    if pipe.as_os_str().len() > MAX_PIPE_DIR {
        return Err(MpsError::PathTooLong(pipe).into());
    }
    Ok(())
}

/// True if the plan has started the first daemons of this node.
fn has_first_daemons(node: &Node, plan: &Plan) -> bool {
    let is_started = |served: &Served| plan.starts().any(|start| start.name == served.record.name);
    let mut alive = node.served().filter(|served| served.is_alive());
    plan.stops().next().is_none() && alive.all(is_started)
}

/// Says what comes next where a node has its first daemons: how a program uses a device, and how the profile is applied at
/// boot.
fn remark_on_next_steps(args: &UpArgs, environment: &Environment, node: &Node, plan: &Plan) {
    if args.consent.json {
        return;
    }
    if !has_first_daemons(node, plan) {
        return;
    }
    if let Some(start) = plan.starts().next() {
        let name = quote_for_shell(&start.name);
        report(&format!("Use a device: mig-mps run {name} -- PROGRAM"));
    }
    let host = &environment.host;
    if environment.is_root()
        && host.is_run_by_systemd()
        && !host.applies_profile_at_boot()
        && let Some(profile) = args.profile.as_word()
    {
        report(&format!(
            "At every boot: mig-mps systemd {profile} --install --enable"
        ));
    }
}

/// Explains the MPS default that surprises people, when the first daemons of a node were started with it.
fn remark_on_one_at_a_time(node: &Node, plan: &Plan) {
    let starts: Vec<&Start> = plan.starts().collect();
    if !has_first_daemons(node, plan) {
        return;
    }
    let one_at_a_time = starts
        .iter()
        .filter(|start| *start.serve_setting() == Serve::OneAtATime)
        .count();
    let which = match one_at_a_time {
        0 => return,
        all if all == starts.len() => "these devices serve".to_owned(),
        1 => "1 of these devices serves".to_owned(),
        some => format!("{some} of these devices serve"),
    };
    let how_to_share = if node.control_program().has_multiuser_server {
        "; serve = \"all\" lets users share"
    } else {
        ""
    };
    note(&format!(
        "{which} one user at a time: while a user has programs on a device, `mig-mps run` refuses programs of other users, \
         and CUDA programs that they start without `mig-mps run` wait{how_to_share}"
    ));
}

/// Says which pods of a device for one user have to wait, where there are pods.
fn remark_on_pods(environment: &Environment, plan: &Plan) {
    if !environment.host.has_device_plugin() {
        return;
    }
    let remarks: BTreeSet<String> = plan
        .starts()
        .map(Start::serve_setting)
        .filter(|serve| matches!(serve, Serve::User(_)))
        .filter_map(|serve| Some(format!("serve = \"{serve}\": {}", serve.limits_of_pods()?)))
        .collect();
    for remark in remarks {
        note(&remark);
    }
}

/// Names the service that brings another geometry at boot.
fn remark_on_mig_manager(environment: &Environment) {
    let enabled = environment.host.enabled_units();
    if enabled.iter().any(|unit| unit == MIG_MANAGER_UNIT) {
        let command =
            strip_needless_sudo(&format!("sudo systemctl disable --now {MIG_MANAGER_UNIT}"));
        warn(&format!(
            "{MIG_MANAGER_UNIT} is enabled and applies another MIG configuration at boot; to disable it, run \
             `{command}`"
        ));
    }
}

/// Says that the next boot brings another profile, and how this one is kept. A plain user's daemons are not those of the boot.
fn remark_on_boot(args: &UpArgs, environment: &Environment, profile: &Profile) {
    let host = &environment.host;
    let is_shown = !args.consent.dry_run && !args.consent.json && environment.is_root();
    if !is_shown || !host.applies_profile_at_boot() {
        return;
    }
    let at_boot = host.boot_profile();
    if let Ok(Some(text)) = at_boot.read()
        && text != profile.source.text()
    {
        let path = at_boot.path().display().to_string();
        let remedy = if is_of_pod(&text) {
            "change the profile of the pod that has installed mig-mps on this host".to_owned()
        } else {
            format!("run `mig-mps profiles --applied | sudo tee {path}`")
        };
        warn(&format!(
            "another profile is applied at boot, {path}; to keep this one, {remedy}"
        ));
    }
}

/// Rotates large logs if there are any, under a lock of its own.
fn rotate_large_logs(environment: &Environment, directories: &Directories, node: &Node) {
    if !apply::has_large_logs(node, directories) {
        return;
    }
    // Not worth a wait: the next `up` finds them as well.
    match lock_node(environment, directories, Duration::ZERO) {
        Ok(_lock) => rotate_large_logs_under_lock(environment, directories, node),
        Err(error) => warn(&format!("large logs could not be moved: {error:#}")),
    }
}

/// Rotates large logs. The caller holds the lock.
fn rotate_large_logs_under_lock(environment: &Environment, directories: &Directories, node: &Node) {
    for kept in apply::rotate_daemon_logs(environment, node, directories) {
        note(&kept);
    }
}
