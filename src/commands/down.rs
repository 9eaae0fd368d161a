//! `mig-mps down`

use std::slice;
use std::time::Duration;

use clap::Args;

use super::after_change::{follow_change, note_change};
use super::args::{ConsentArgs, DeviceArgs, IN_USE_HINT, NoNewArgs, REFUSED_STATUS, seconds};
use super::cdi_file::{self, CdiRequest};
use super::change::{Change, ChangeOptions};
use super::change_report::Outcome;
use super::down_remarks::{
    remark_on_boot, remark_on_quarantined_files, remark_on_remaining_instances,
    remark_on_remaining_mig_modes, remark_on_return, remark_on_the_profile,
    remark_on_users_daemons,
};
use super::{Context, LOCK_LIMIT, lock_node, own_directories};
use crate::apply::{self, Allowed, OnFailure};
use crate::error::{CommandError, Result, command_error, usage_error};
use crate::failure::ExitStatus;
use crate::host::{Directories, Environment, format_gpus, to_printable};
use crate::node::{Device, Gpu, LOST_GPU_REMEDY, Node, Observer};
use crate::plan::{self, Destroy, DownRequest, LeftOut, Plan, Refusal};
use crate::render::format::format_count;
use crate::render::{examples_and_statuses, format_time_taken, note, report, warn};
use crate::state::{ProfileHistory, RunDir};

/// Stop daemons, and optionally undo MIG changes
///
/// Without DEVICE, stops all daemons that mig-mps started. Refuses while there are clients, unless you pass --drain or
/// --force.
#[derive(Args, Clone, Debug)]
#[command(after_help = examples_and_statuses(&[
    ("sudo mig-mps down --drain 10m", "Wait for clients first"),
    ("sudo mig-mps down 0.0", "Stop one device"),
    ("sudo mig-mps down --disable-mig --purge", "Undo all changes to the GPUs"),
], &[("3", "a reset or a reboot is pending"), REFUSED_STATUS]))]
#[allow(clippy::struct_excessive_bools, reason = "they are flags")]
pub struct DownArgs {
    #[command(flatten)]
    devices: DeviceArgs,
    #[command(flatten)]
    consent: ConsentArgs,
    #[command(flatten)]
    no_new: NoNewArgs,
    /// Destroy the GPU instances that mig-mps created
    #[arg(long, help_heading = "MIG")]
    destroy_mig: bool,
    /// Destroy all GPU instances, including those of others
    #[arg(long, help_heading = "MIG")]
    destroy_unmanaged: bool,
    /// Also disable MIG mode if mig-mps enabled it
    #[arg(long, help_heading = "MIG")]
    disable_mig: bool,
    /// Reset a GPU if its MIG mode cannot change otherwise
    #[arg(long, requires = "disable_mig", help_heading = "MIG")]
    reset: bool,
    /// Stop monitoring services during the change
    #[arg(long, help_heading = "MIG")]
    stop_holders: bool,
    /// During a shutdown, do the same as --drain DURATION --force; otherwise refuse while there are clients
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = seconds,
        conflicts_with_all = ["drain", "force", "no_new"],
        hide_short_help = true
    )]
    at_shutdown: Option<u32>,
    /// Also remove logs, and files that users left in pipe directories
    #[arg(long)]
    purge: bool,
}

/// The hint about clients in the way when systemd stops the service, which does not stop their daemons.
const SERVICE_HINT: &str = "wait for the clients with `mig-mps down --drain DURATION`, or end them with `mig-mps down \
 --force`; the daemons still run, and `systemctl start mig-mps` makes the service active again";

/// A warning about `--disable-mig`.
const RESET_WARNING: &str = "on Ampere (A100, A30), switching MIG mode off needs a GPU reset, which cloud machines \
 may not allow; without it, the GPU cannot be used until the machine is rebooted";

impl DownArgs {
    fn destroys_instances(&self) -> bool {
        self.destroy_mig || self.disable_mig || self.destroy_unmanaged
    }

    fn instances_to_destroy(&self) -> Destroy {
        match (self.destroy_unmanaged, self.destroys_instances()) {
            (true, _) => Destroy::All,
            (false, true) => Destroy::Made,
            (false, false) => Destroy::Nothing,
        }
    }

    /// The request to the planner.
    fn build_request(&self, node: &Node) -> Result<DownRequest, Refusal> {
        // Nothing is left to stop of a device that cannot start, or of one of its GPUs.
        let is_stopped = |word: &String| {
            let resolved = node.resolve_words(slice::from_ref(word));
            resolved.is_err_and(|error| error.is_of_stopped_device())
        };
        let words = self.devices.words.iter().cloned();
        let (stopped, words): (Vec<String>, Vec<String>) = words.partition(is_stopped);
        let others = DeviceArgs {
            words,
            gpus: self.devices.gpus.clone(),
        };
        let (mut devices, gpus) = if self.destroys_instances() {
            others.resolve_names_and_gpus(node)?
        } else {
            (others.resolve_names(node)?, Vec::new())
        };
        devices.extend(stopped);
        Ok(DownRequest {
            devices,
            gpus,
            force: if self.no_new.no_new {
                // The clients are ended later.
                None
            } else {
                self.consent.force_after_seconds()
            },
            destroy: self.instances_to_destroy(),
            disable_mig: self.disable_mig,
            purge: self.purge,
        })
    }

    /// The error if something that is to be destroyed or switched off stays because its GPU cannot be read.
    fn unreadable_gpus_error(&self, node: &Node, request: &DownRequest) -> Option<CommandError> {
        let mut made: Vec<&String> = Vec::new();
        if self.destroys_instances() {
            made.extend(node.created.iter().map(|created| &created.gpu));
        }
        if self.disable_mig {
            made.extend(&node.switched_on);
        }
        made.retain(|gpu| node.gpu_with_uuid(gpu).is_none());
        if made.is_empty() {
            return None;
        }
        let (mut gpus, mut reasons) = (Vec::new(), Vec::new());
        for (index, why) in node.lost_gpus() {
            let mut on_it = node
                .devices
                .iter()
                .filter(|device| device.gpu_indices().contains(&index))
                .filter(|device| device.key.gpus().iter().any(|gpu| made.contains(&gpu)));
            if request.means_all() || on_it.any(|device| request.selects(&device.name)) {
                gpus.push(index);
                reasons.push(why);
            }
        }
        if gpus.is_empty() {
            return None;
        }
        let error = command_error(format_args!(
            "devices and instances of mig-mps remain on {}, which cannot be read: {}",
            format_gpus(&gpus),
            reasons.join("; ")
        ));
        Some(error.with_hint(format!("{LOST_GPU_REMEDY}, then run this command again")))
    }
}

/// Stops daemons and removes what was made for them.
pub fn run(args: &DownArgs, context: &Context<'_>) -> Result<ExitStatus> {
    if args.stop_holders && !args.destroys_instances() {
        let error = usage_error("--stop-holders needs --destroy-mig or --disable-mig");
        return Err(error.with_hint("omit --stop-holders, or add one of these options"));
    }
    let mut args = args.clone();
    // All instances and MIG modes are meant, also those of GPUs without devices.
    if args.destroys_instances() && args.devices.words == ["*"] {
        args.devices = DeviceArgs::default();
    }
    let Some(limit) = args.at_shutdown else {
        return take_down(&args, context.environment);
    };
    let mut take_down: fn(&DownArgs, &Environment) -> _ = take_down;
    if is_shutting_down(context.environment) {
        args.consent.force = true;
        args.consent.drain = Some(limit);
        // What follows a change has no effect that outlasts the next boot.
        take_down = stop_and_destroy;
    }
    take_down(&args, context.environment).map_err(|mut error| {
        for hint in error.hints.iter_mut().filter(|hint| *hint == IN_USE_HINT) {
            SERVICE_HINT.clone_into(hint);
        }
        error
    })
}

/// True if the machine is shutting down; false also if that cannot be found out.
fn is_shutting_down(environment: &Environment) -> bool {
    let units = environment.find_systemctl().map_err(CommandError::from);
    match units.and_then(|units| Ok(units.is_shutting_down()?)) {
        Ok(answer) => answer,
        Err(error) => {
            warn(&format!(
                "cannot find out whether the machine is shutting down: {error}"
            ));
            false
        }
    }
}

fn take_down(args: &DownArgs, environment: &Environment) -> Result<ExitStatus> {
    let ended = stop_and_destroy(args, environment);
    if args.consent.dry_run {
        return ended;
    }
    follow_change(ended, environment)
}

fn stop_and_destroy(args: &DownArgs, environment: &Environment) -> Result<ExitStatus> {
    let directories = own_directories(environment, &args.consent)?;
    let run_dir = RunDir::at(&directories.run);
    if args.consent.force && !args.consent.dry_run {
        quarantine_unreadable_files(environment, &directories)?;
    }
    let mut change = DownChange {
        args,
        environment,
        targets: DownTargets::default(),
    };
    let outcome = ChangeOptions {
        allowed: Allowed {
            reset: args.reset,
            stop_holders: args.stop_holders,
            destroy_unmanaged: args.destroy_unmanaged,
        },
        no_new: args.no_new.no_new,
        on_failure: OnFailure::GoOn,
        is_resumable: true,
        observer: Observer::new(environment).asking_only(&args.devices),
        ..ChangeOptions::new(environment, &directories, &args.consent)
    }
    .run(&mut change)?;
    let mut targets = change.targets;
    if args.consent.dry_run
        && let Some(unread) = &targets.unread
    {
        warn(&unread.to_string());
    }
    let Some(mut outcome) = outcome else {
        return Ok(ExitStatus::Done);
    };
    if !args.consent.dry_run
        && let Some(unread) = targets.unread.take()
    {
        outcome.defer_error(unread);
    }
    let ends_anything = !outcome.is_unchanged || !outcome.node.stopped.is_empty();
    let keeps_devices = outcome.plan.stops().any(|stop| stop.keeps_device);
    let is_of_all = args.devices.is_empty() || !outcome.is_unchanged && !keeps_devices;
    if ends_anything && is_of_all && run_dir.has_no_records() {
        record_end(environment, &run_dir, &outcome.node);
    }
    let _ = note_change(environment, &outcome);
    if !args.consent.dry_run {
        remove_mount_sources(environment, &directories, &outcome)?;
    }
    print_summary(args, environment, &run_dir, &outcome, &targets)?;
    match outcome.deferred_error {
        Some(error) => Err(error.already_in_json()),
        None => Ok(ExitStatus::Done),
    }
}

/// The change that takes devices down.
struct DownChange<'a> {
    args: &'a DownArgs,
    environment: &'a Environment,
    targets: DownTargets,
}

impl Change for DownChange<'_> {
    fn plan(
        &mut self,
        node: &Node,
        run_dir: &RunDir,
        _left_out: Option<&mut LeftOut>,
    ) -> Result<Plan, Refusal> {
        let request = self.args.build_request(node)?;
        self.targets = DownTargets::from_request(node, self.args, &request);
        let mut plan = plan::down(node, run_dir, &request)?;
        if self.environment.is_root() {
            let request = self.cdi_request();
            plan.cdi = cdi_file::plan_change(self.environment, node, run_dir, request, &plan);
        }
        Ok(plan)
    }

    fn remark(&self, node: &Node, plan: &Plan) {
        // It switches MIG mode off on a GPU that needs a reset for that.
        if plan.gpus.iter().any(|gpu| gpu.due.is_some()) {
            warn(RESET_WARNING);
        }
        if self.args.disable_mig {
            remark_on_remaining_mig_modes(node, plan, &self.targets.gpus);
        }
    }

    /// Stopping daemons, with --force also those with clients, is what was asked for.
    fn needs_consent(&self, plan: &Plan) -> bool {
        !plan.destroyed_instances().is_empty() || self.args.disable_mig
    }

    fn needs_driver(&self) -> bool {
        self.args.destroys_instances()
    }

    fn cdi_request(&self) -> CdiRequest {
        CdiRequest::KeepCurrent
    }
}

/// Puts aside the files of the whole node that cannot be read: `--force` ends daemons whatever happened to these files.
fn quarantine_unreadable_files(environment: &Environment, directories: &Directories) -> Result<()> {
    let run_dir = RunDir::at(&directories.run);
    if run_dir.has_unreadable() {
        let _lock = lock_node(environment, directories, LOCK_LIMIT)?;
        for sentence in run_dir.quarantine_unreadable()? {
            warn(&sentence);
        }
    }
    Ok(())
}

/// Removes what container runtimes have made of missing mount sources, and names what else is in a place of mig-mps.
fn remove_mount_sources(
    environment: &Environment,
    directories: &Directories,
    outcome: &Outcome,
) -> Result<()> {
    let run_dir = RunDir::at(&directories.run);
    let misplaced = run_dir.find_misplaced();
    if misplaced.iter().any(|found| found.is_removed) {
        let is_locked = !outcome.is_unchanged;
        let _lock = (!is_locked)
            .then(|| lock_node(environment, directories, LOCK_LIMIT))
            .transpose()?;
        run_dir.remove_mount_sources()?;
    }
    for found in run_dir.find_misplaced() {
        warn(&format!(
            "{}; move it away, because mig-mps does not remove it",
            to_printable(&found.why)
        ));
    }
    Ok(())
}

/// The devices and GPUs that a command is about.
#[derive(Default)]
pub(super) struct DownTargets {
    /// The UUIDs of the devices.
    pub(super) devices: Vec<String>,
    /// The UUIDs of their GPUs.
    gpus: Vec<String>,
    /// The UUIDs of the GPUs that are meant as a whole.
    pub(super) whole_gpus: Vec<String>,
    /// The error if something stays because its GPU cannot be read.
    unread: Option<CommandError>,
}

impl DownTargets {
    fn from_request(node: &Node, args: &DownArgs, request: &DownRequest) -> Self {
        let devices: Vec<&Device> = node
            .existing_devices()
            .filter(|device| request.selects(&device.name))
            .collect();
        let uuids = |is_meant: &dyn Fn(&Gpu) -> bool| -> Vec<String> {
            node.gpus
                .iter()
                .filter(|gpu| is_meant(gpu))
                .map(|gpu| gpu.uuid.clone())
                .collect()
        };
        let has_device = |gpu: &Gpu| devices.iter().any(|device| device.key.has_gpu(&gpu.uuid));
        Self {
            gpus: uuids(&|gpu| request.means_whole(gpu) || has_device(gpu)),
            whole_gpus: uuids(&|gpu| request.means_whole(gpu)),
            devices: devices.iter().map(|device| device.uuid.clone()).collect(),
            unread: args.unreadable_gpus_error(node, request),
        }
    }
}

/// True if systemd runs this to stop a service: it sets this variable for such commands.
pub(super) fn is_run_by_service() -> bool {
    std::env::var_os("SERVICE_RESULT").is_some()
}

/// Records that nothing is left of the applied profile. What was stopped stays so where that cannot be written.
fn record_end(environment: &Environment, run_dir: &RunDir, node: &Node) {
    // systemd stops the service at a shutdown, too, and the profile is applied again at the next boot.
    if is_run_by_service() {
        return;
    }
    let recorded = environment
        .state_dir()
        .map_err(CommandError::from)
        .and_then(|directory| {
            apply::record_missing(run_dir, &node.boot_id, &[], |_| true)?;
            Ok(ProfileHistory::record_take_down(
                &directory,
                environment.caller_name(),
            )?)
        });
    if let Err(error) = recorded {
        warn(&format!(
            "the removal of the profile could not be recorded, so status will not show it: {error}"
        ));
    }
}

/// Says what was done, and what stays.
fn print_summary(
    args: &DownArgs,
    environment: &Environment,
    run_dir: &RunDir,
    outcome: &Outcome,
    targets: &DownTargets,
) -> Result<()> {
    let (node, plan) = (&outcome.node, &outcome.plan);
    if args.consent.json {
        outcome.report(environment, &[], &args.consent, None)?;
    } else if plan.is_empty() && !args.devices.is_empty() {
        report("Nothing to do: mig-mps serves none of these devices.");
    } else {
        report(&format!(
            "{}{}",
            summary_line(plan, outcome.took),
            outcome.restarted_suffix()
        ));
    }
    if plan.is_empty() {
        remark_on_users_daemons(node);
    } else {
        remark_on_quarantined_files(run_dir);
    }
    if node.has_no_driver() {
        let hidden = node.describe_unseen().join("; ");
        note(&format!(
            "not seen: {hidden}. Compute modes were not changed."
        ));
    }
    if args.destroys_instances() {
        remark_on_remaining_instances(node, targets, args.instances_to_destroy());
    }
    // A plan that was shown said it before.
    if args.disable_mig && outcome.is_unchanged {
        remark_on_remaining_mig_modes(node, plan, &targets.gpus);
    }
    if args.devices.is_empty() && run_dir.has_no_records() && !args.consent.json {
        remark_on_boot(environment);
    }
    if !args.devices.is_empty() && !plan.is_empty() {
        if args.destroys_instances() {
            remark_on_the_profile(environment);
        } else if !args.consent.json {
            remark_on_return(plan, node);
        }
    }
    Ok(())
}

fn summary_line(plan: &Plan, took: Duration) -> String {
    let stopped = plan.stopped_daemons().len();
    let cleared = plan.stops().filter(|stop| !stop.alive).count();
    let destroyed = plan.destroyed_instances().len();
    let switched = plan.mig_switched().len();
    let mut parts = Vec::new();
    if stopped > 0 {
        parts.push(format_count(stopped, "daemon") + " stopped");
    }
    if cleared > 0 {
        parts.push(format_count(cleared, "dead daemon") + " cleaned up");
    }
    if destroyed > 0 {
        parts.push(format_count(destroyed, "GPU instance") + " destroyed");
    }
    if switched > 0 {
        parts.push(format!("MIG mode off on {}", format_count(switched, "GPU")));
    }
    match (parts.as_slice(), &plan.purge) {
        ([], None) => "Nothing to do: mig-mps serves no device here.".to_owned(),
        ([], Some(_)) => "Logs removed.".to_owned(),
        (_, purge) => {
            let logs = purge.as_ref().map_or("", |_| ", logs removed");
            format!("{}{logs} in {}", parts.join(", "), format_time_taken(took))
        }
    }
}
