//! `mig-mps start`

use clap::Args;

use super::Context;
use super::args::{ConsentArgs, DeviceArgs};
use super::restart::{DaemonRequest, start_daemons};
use crate::error::Result;
use crate::failure::ExitStatus;
use crate::plan;
use crate::render::examples_and_statuses;

/// Start the daemons of stopped devices
///
/// A device that `mig-mps down DEVICE` stopped gets its former settings. Any other device of the applied profile without
/// a daemon gets the settings of the profile. Running daemons stay as they are.
#[derive(Args, Debug)]
#[command(after_help = examples_and_statuses(&[
    ("sudo mig-mps start 0.0", "Start the daemon of device 0.0"),
    ("sudo mig-mps start '*'", "Start all stopped devices"),
], &[("4", "another change is in progress")]))]
pub struct StartArgs {
    #[command(flatten)]
    devices: DeviceArgs,
    #[command(flatten)]
    consent: ConsentArgs,
}

/// Starts the daemons that do not run.
pub fn run(args: &StartArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let request = DaemonRequest {
        command: "start",
        planner: plan::start,
        devices: &args.devices,
        consent: &args.consent,
        no_new: false,
    };
    start_daemons(&request, context)
}
