//! `mig-mps heal`

use std::time::Duration;

use clap::Args;

use super::after_change::{follow_change, note_change};
use super::args::{ConsentArgs, DeviceArgs};
use super::change::ChangeOptions;
use super::change_report::Outcome;
use super::give_back::{find_interrupted_selftest, restore_interrupted};
use super::{Context, check_not_newer, no_daemon_error};
use crate::apply::OnFailure;
use crate::error::{CommandError, Result};
use crate::failure::ExitStatus;
use crate::host::Environment;
use crate::node::{Detail, Node, Observer, Served, observe};
use crate::plan::{self, Action, Plan, StartedBy};
use crate::render::format::format_count;
use crate::render::json::ChangeDocument;
use crate::render::{
    examples_and_statuses, is_watched, note, print_json, print_lines, report, warn,
};
use crate::state::{DeviceRecord, RunDir};

/// Restart dead daemons, and hung daemons without clients
///
/// A timer runs this command every minute (see `mig-mps systemd`). It asks no questions and disrupts no programs. It also
/// ends servers without clients that outlived their daemons, reports programs outside MPS, and runs the programs in
/// /etc/mig-mps/after-change.d that have not run since the last change. It does nothing while another change is in
/// progress, and does not start devices that `down` stopped. After five starts of a device within an hour, it gives up,
/// and the state of the device is `failing` until `restart` or `up` starts it.
#[derive(Args, Debug)]
#[command(after_help = examples_and_statuses(&[
    ("sudo mig-mps heal", "Heal all devices"),
    ("sudo mig-mps heal --dry-run", "Show what would be restarted"),
], &[("3", "a device is failing")]))]
pub struct HealArgs {
    #[command(flatten)]
    devices: DeviceArgs,
    /// Show the plan and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the plan and the result as JSON
    #[arg(long)]
    json: bool,
}

/// The problems of daemons that live. They may have clients, or the administrator may have stopped them.
const UNHEALED_PROBLEMS: [&str; 3] = ["daemon-stopped", "daemon-orphan", "daemon-silent"];

/// Heals the devices that need it, and runs the programs that have not followed a change.
pub fn run(args: &HealArgs, context: &Context<'_>) -> Result<ExitStatus> {
    if let Some(refused) = restore_gpus_of_selftest(args, context.environment)? {
        return Ok(refused);
    }
    let healed = heal_devices(args, context.environment, true);
    if args.dry_run {
        return healed;
    }
    follow_change(healed, context.environment)
}

/// Restores the GPUs of an interrupted self-test. Returns the exit status if that has to wait for another change.
fn restore_gpus_of_selftest(
    args: &HealArgs,
    environment: &Environment,
) -> Result<Option<ExitStatus>> {
    if args.dry_run || find_interrupted_selftest(environment).is_none() {
        return Ok(None);
    }
    match restore_interrupted(environment, &environment.directories()?, false) {
        Err(error) if error.status == ExitStatus::Refused => {
            report_refused(args, environment, &error).map(Some)
        }
        restored => restored.map(|_| None),
    }
}

/// Heals the devices. Where that only makes daemons end that were closed to new programs, what follows them is done in another
/// pass.
fn heal_devices(
    args: &HealArgs,
    environment: &Environment,
    has_another_pass: bool,
) -> Result<ExitStatus> {
    environment.mps_programs()?;
    let directories = environment.directories()?;
    let run_dir = RunDir::at(&directories.run);
    let detail = Detail {
        outside_mps: true,
        ..Detail::CLIENTS
    };
    let mut observer = Observer::new(environment);
    // Asking every daemon takes time and adds to its log: a healthy node is not asked.
    let node = observe_daemons(&mut observer, Detail::STATUS, &run_dir)?;
    let names = args.devices.resolve_names(&node)?;
    let planned = plan::heal(&node, &run_dir, &names)?;
    if planned.is_empty() && !args.json {
        // A timer writes a line into its journal only when something was done, or has to be.
        let healed = is_watched().then(HealCounts::default);
        return Ok(report_rest(&node, &names, healed));
    }
    let consent = ConsentArgs {
        dry_run: args.dry_run,
        json: args.json,
        ..ConsentArgs::UNATTENDED
    };
    let changed = ChangeOptions {
        detail,
        on_failure: OnFailure::GoOn,
        lock_limit: Duration::ZERO,
        observer,
        first_node: Some(node.clone()),
        ..ChangeOptions::new(environment, &directories, &consent)
    }
    .run_plan(|node, run_dir| plan::heal(node, run_dir, &args.devices.resolve_names(node)?));
    let outcome = match changed {
        // Another change holds the lock, or a client has come to a device that hung.
        Err(error) if error.status == ExitStatus::Refused => {
            return report_refused(args, environment, &error);
        }
        changed => changed?,
    };
    let Some(outcome) = outcome else {
        return Ok(report_rest(&node, &names, None));
    };
    let _ = note_change(environment, &outcome);
    let only_closes = outcome.plan.closes().count() == outcome.plan.steps().count();
    if has_another_pass && only_closes && !outcome.is_unchanged {
        drop(outcome);
        return heal_devices(args, environment, false);
    }
    let names = args.devices.resolve_names(&outcome.node)?;
    let mut healed = None;
    if args.json {
        outcome.report(environment, &names, &consent, None)?;
    } else {
        healed = Some(print_healed_devices(&outcome)?);
    }
    if let Some(error) = outcome.failed {
        return Err(CommandError::from(error).already_in_json());
    }
    Ok(report_rest(&outcome.node, &names, healed))
}

/// Reports why nothing is healed now: a timer tries again.
fn report_refused(
    args: &HealArgs,
    environment: &Environment,
    error: &CommandError,
) -> Result<ExitStatus> {
    note(&error.message().what);
    if args.json {
        let node = observe(environment, Detail::STATUS)?;
        print_json(&ChangeDocument::after_change(&Plan::default(), &node, None))?;
    }
    Ok(ExitStatus::Done)
}

/// Observes the node; fails if no daemon can be seen because a run directory cannot be read.
fn observe_daemons(observer: &mut Observer<'_>, detail: Detail, run_dir: &RunDir) -> Result<Node> {
    check_not_newer(run_dir)?;
    let node = observer.observe(detail)?;
    if node.served().next().is_none() && node.unseen_daemons().is_some() {
        return Err(no_daemon_error(&node));
    }
    Ok(node)
}

/// The numbers of daemons that were started, of servers that were ended, and of devices that are stopped now.
#[derive(Default)]
struct HealCounts {
    started: usize,
    ended: usize,
    /// Devices that were closed to new programs, and stay without a daemon.
    stopped: usize,
}

/// `3 daemons started, 1 server ended, 1 given up`
fn summary_line(healed: &HealCounts, given_up: usize) -> String {
    let mut parts = Vec::new();
    if healed.started > 0 {
        parts.push(format_count(healed.started, "daemon") + " started");
    }
    if healed.ended > 0 {
        parts.push(format_count(healed.ended, "server") + " ended");
    }
    if healed.stopped > 0 {
        parts.push(format_count(healed.stopped, "device") + " stopped");
    }
    if parts.is_empty() {
        parts.push("Nothing to do".to_owned());
    }
    if given_up > 0 {
        parts.push(format!("{given_up} given up"));
    }
    parts.join(", ")
}

/// Prints a line for each server that was ended and each device that was healed.
fn print_healed_devices(outcome: &Outcome) -> Result<HealCounts> {
    let mut healed = HealCounts::default();
    for step in outcome.plan.steps() {
        if let Action::EndStray(end) = &step.action {
            let (name, pid) = (&end.name, end.pid);
            print_lines(&format!(
                "{name}: server {pid} outlived its daemon and was ended"
            ))?;
            healed.ended += 1;
        }
        if let Some(start) = step.action.as_start()
            && let Some(Served { record, .. }) = outcome.node.served_named(&start.name)
            && record.finished
            && let Some(daemon) = record.daemon
        {
            let (name, because, pid) = (&start.name, &step.because, daemon.pid);
            healed.started += 1;
            if start.by != StartedBy::Heal {
                print_lines(&format!("{name}: {because}: daemon {pid} serves it"))?;
                continue;
            }
            let (times, most) = (record.healed.len(), DeviceRecord::MAX_HEALS_PER_HOUR);
            print_lines(&format!(
                "{name}: {because}: restarted, daemon {pid} serves it ({times} of {most} times within an hour)"
            ))?;
        }
        if let Some(stop) = step.action.as_stop().filter(|stop| stop.keeps_device) {
            print_lines(&format!("{}: stopped after its programs exited", stop.name))?;
            healed.stopped += 1;
        }
    }
    Ok(healed)
}

/// Reports what is not healed, and ends with a line that counts what is, if that is known. Returns the exit status.
fn report_rest(node: &Node, names: &[String], healed: Option<HealCounts>) -> ExitStatus {
    let given_up = report_failing(node, names);
    if let Some(healed) = healed {
        report(&summary_line(&healed, given_up));
    }
    if given_up > 0 {
        ExitStatus::Drift
    } else {
        ExitStatus::Done
    }
}

/// Reports the devices that are given up, those that are gone, those whose daemons live and are left to the administrator, and
/// programs outside MPS; returns the number of devices that are given up.
fn report_failing(node: &Node, names: &[String]) -> usize {
    let mut failing = Vec::new();
    for served in node.served() {
        let name = &served.record.name;
        if served.is_failing() && (names.is_empty() || names.contains(name)) {
            failing.push(name);
        }
    }
    for problem in node.problems(names) {
        if let Some(name) = &problem.device
            && (matches!(problem.id, "device-gone" | "gpu-lost" | "outside-mps")
                || failing.contains(&name))
        {
            warn(&format!("device {problem}"));
        }
        if UNHEALED_PROBLEMS.contains(&problem.id) {
            warn(&format!("not healed: {problem}"));
        }
    }
    failing.len()
}
