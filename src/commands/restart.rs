//! `mig-mps restart`, and what `mig-mps start` has in common with it

use clap::Args;

use super::after_change::{follow_change, note_change};
use super::args::{ConsentArgs, DeviceArgs, NoNewArgs, REFUSED_STATUS};
use super::cdi_file::CdiRequest;
use super::change::{Change, ChangeOptions};
use super::change_report::Outcome;
use super::missing_devices::with_unserved_devices;
use super::{Context, known_devices, own_directories};
use crate::error::{CommandError, Result, usage_error};
use crate::failure::ExitStatus;
use crate::host::Environment;
use crate::node::{Node, Observer};
use crate::plan::{self, LeftOut, Plan, Refusal};
use crate::render::{examples_and_statuses, report};
use crate::state::RunDir;

/// Restart daemons with their current settings
///
/// Fixes a daemon that died or lost its pipe directory, a hung device, and a fault that does not clear. Keeps settings
/// made with `set`. Also starts stopped devices. Refuses while there are clients, unless you pass --drain or --force. If
/// a new daemon does not start, the old one is started again.
#[derive(Args, Debug)]
#[command(after_help = examples_and_statuses(&[
    ("sudo mig-mps restart 0.0", "Restart the daemon of device 0.0"),
    ("sudo mig-mps restart --gpu 0 --drain 10m", "Wait for the clients first"),
    ("sudo mig-mps restart '*' --force", "Restart all daemons now"),
], &[REFUSED_STATUS]))]
pub struct RestartArgs {
    #[command(flatten)]
    devices: DeviceArgs,
    #[command(flatten)]
    consent: ConsentArgs,
    #[command(flatten)]
    no_new: NoNewArgs,
}

/// Restarts daemons with their recorded settings.
pub fn run(args: &RestartArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let request = DaemonRequest {
        command: "restart",
        planner: plan::restart,
        devices: &args.devices,
        consent: &args.consent,
        no_new: args.no_new.no_new,
    };
    start_daemons(&request, context)
}

/// The request of `restart` or `start`.
pub(super) struct DaemonRequest<'a> {
    pub(super) command: &'static str,
    /// Plans for the devices with these names.
    pub(super) planner: fn(&Node, &RunDir, &[String]) -> Result<Plan, Refusal>,
    pub(super) devices: &'a DeviceArgs,
    pub(super) consent: &'a ConsentArgs,
    pub(super) no_new: bool,
}

/// Makes the change of `restart` or `start`.
pub(super) fn start_daemons(
    request: &DaemonRequest<'_>,
    context: &Context<'_>,
) -> Result<ExitStatus> {
    let (environment, consent) = (context.environment, request.consent);
    if request.devices.is_empty() {
        return Err(no_device_error(request.command, environment));
    }
    environment.mps_programs()?;
    let directories = own_directories(environment, consent)?;
    let options = ChangeOptions {
        no_new: request.no_new,
        observer: Observer::new(environment).asking_only(request.devices),
        ..ChangeOptions::new(environment, &directories, consent)
    };
    let mut change = DaemonStarts {
        request,
        environment,
    };
    let Some(outcome) = options.run(&mut change)? else {
        return Ok(ExitStatus::Done);
    };
    let is_noted = note_change(environment, &outcome);
    let ended = report_change(request, environment, outcome);
    if is_noted {
        return follow_change(ended, environment);
    }
    ended
}

/// The error of a command without a device: names those that it can be about.
fn no_device_error(command: &str, environment: &Environment) -> CommandError {
    let known = known_devices(environment);
    let names = match command {
        "start" if known.stopped.is_empty() => {
            Some("run `mig-mps status` to see the devices; no device is stopped".to_owned())
        }
        "start" => Some(format!(
            "choose one of the stopped devices: {}",
            known.stopped.join(", ")
        )),
        _ => known.hint,
    };
    let error = usage_error("no device is selected").with_hint(format!(
        "run `mig-mps {command} DEVICE`, with --gpu N for every device of a GPU, or '*' for all devices; `mig-mps up` \
         applies a profile"
    ));
    match names {
        Some(names) => error.with_hint(names),
        None => error,
    }
}

/// Shows the devices after the change.
fn report_change(
    request: &DaemonRequest<'_>,
    environment: &Environment,
    outcome: Outcome,
) -> Result<ExitStatus> {
    let consent = request.consent;
    let names = request.devices.resolve_served_names(&outcome.node)?;
    if outcome.is_unchanged && !consent.json {
        report("Nothing to do: the daemons of these devices are running.");
    }
    outcome.report(environment, &names, consent, None)?;
    outcome.print_summary(&names, consent);
    match outcome.deferred_error {
        Some(error) => Err(error.already_in_json()),
        None => Ok(ExitStatus::Done),
    }
}

/// The change that starts daemons, or restarts them.
struct DaemonStarts<'a> {
    request: &'a DaemonRequest<'a>,
    environment: &'a Environment,
}

impl Change for DaemonStarts<'_> {
    fn plan(
        &mut self,
        node: &Node,
        run_dir: &RunDir,
        _left_out: Option<&mut LeftOut>,
    ) -> Result<Plan, Refusal> {
        let devices = self.request.devices;
        let plan = |node: &Node| {
            let names = devices.resolve_served_names(node)?;
            (self.request.planner)(node, run_dir, &names)
        };
        let selected = devices.resolve_names(node).unwrap_or_default();
        let is_served_or_stopped = |name: &String| node.is_served_or_stopped(name);
        if !selected.is_empty() && selected.iter().all(is_served_or_stopped) {
            return plan(node);
        }
        // A device of the profile may have no record, and no name without one.
        let named = with_unserved_devices(node, self.environment);
        plan(named.as_ref().unwrap_or(node))
    }

    fn cdi_request(&self) -> CdiRequest {
        CdiRequest::KeepCurrent
    }
}
