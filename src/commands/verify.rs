//! `mig-mps verify`

use clap::Args;

use super::Context;
use super::args::DeviceArgs;
use crate::client::{Verified, check_user_mapping, verify_devices};
use crate::error::Result;
use crate::failure::ExitStatus;
use crate::host::{Environment, raise_client_files};
use crate::node::{Served, observe_records};
use crate::render::json::VerifyDocument;
use crate::render::{examples_and_statuses, print_json, verified};

/// Test that CUDA programs connect to each device
///
/// For each device, a process initializes CUDA as a user of the device, and asks CUDA whether it is an MPS client. The
/// process takes no client slot and creates no context. Skips devices that serve another user. As root, the test also
/// fails if the users of a device cannot enter its directories.
#[derive(Args, Debug)]
#[command(after_help = examples_and_statuses(&[
    ("sudo mig-mps verify", "Test all devices"),
    ("mig-mps verify 0.0", "Test device 0.0"),
], &[("4", "a device was skipped, and no test failed")]))]
pub struct VerifyArgs {
    #[command(flatten)]
    devices: DeviceArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Checks devices by becoming their client.
pub fn run(args: &VerifyArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let environment = context.environment;
    prepare_check(environment)?;
    let node = observe_records(environment)?;
    let names = args.devices.resolve_names(&node)?;
    let mut devices: Vec<&Served> = names
        .iter()
        .filter_map(|name| node.served_named(name))
        .collect();
    if names.is_empty() {
        devices = node.served().collect();
    }
    if devices.is_empty() {
        return Err(crate::commands::no_daemon_error(&node));
    }
    // Each as a user that disturbs nobody.
    let all = verify_devices(environment, &node, devices, None);
    if args.json {
        print_json(&VerifyDocument::new(&all))?;
    } else {
        verified::print(&all)?;
        verified::print_total(&all);
    }
    Ok(exit_status(&all))
}

/// Sees to it that the check itself harms nobody.
pub fn prepare_check(environment: &Environment) -> Result<()> {
    raise_client_files()?;
    Ok(check_user_mapping(&environment.host)?)
}

/// Returns the exit status. A device that serves another user, or is for one, is no failure.
pub fn exit_status(verified: &[Verified]) -> ExitStatus {
    let mut status = ExitStatus::Done;
    for error in verified.iter().filter_map(|one| one.result.as_ref().err()) {
        if !error.is_unchecked() {
            return ExitStatus::Failed;
        }
        status = ExitStatus::Refused;
    }
    status
}
