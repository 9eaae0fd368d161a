//! `mig-mps restart`

use clap::Args;

use super::args::{ConsentArgs, DeviceArgs};
use super::change::ChangeOptions;
use super::{Context, own_directories};
use crate::error::{Result, usage_error};
use crate::failure::ExitStatus;
use crate::plan;

/// Restart daemons with their current settings
///
/// For a daemon that died, hangs or lost its pipe directory, and for a fault that does not clear.
/// Settings made with `set` stay. Refuses while there are clients, unless --drain or --force is given.
/// If a start fails, the old daemon is started again.
#[derive(Args, Debug)]
pub struct RestartArgs {
    #[command(flatten)]
    devices: DeviceArgs,
    #[command(flatten)]
    consent: ConsentArgs,
}

/// Restarts daemons with their recorded settings.
pub fn run(args: &RestartArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let environment = context.environment;
    if args.devices.is_empty() {
        let error = usage_error("no device is named");
        return Err(error.with_hint(
            "mig-mps restart DEVICE; --gpu N takes every device of a GPU, and '*' takes all",
        ));
    }
    environment.mps_programs()?;
    let directories = own_directories(environment, &args.consent)?;
    let options = ChangeOptions::new(environment, &directories, &args.consent);
    let outcome = options.run_plan(|node, run_dir| {
        plan::restart(node, run_dir, &args.devices.resolve_names(node)?)
    })?;
    if let Some(outcome) = outcome {
        let names = args.devices.resolve_names(&outcome.node)?;
        outcome.report(environment, &names, &args.consent, None)?;
        outcome.print_summary(&names, &args.consent);
    }
    Ok(ExitStatus::Done)
}
