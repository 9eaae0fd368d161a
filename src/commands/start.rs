//! `mig-mps start`

use clap::Args;

use super::Context;
use super::args::{ConsentArgs, DeviceArgs};
use super::restart::{DaemonRequest, start_daemons};
use crate::error::Result;
use crate::failure::ExitStatus;
use crate::plan;

/// Start the daemons of stopped devices
///
/// A device that `down` has stopped by name gets the settings that it had; any other device of the
/// applied profile without a daemon gets those of the profile. Daemons that run stay as they are.
#[derive(Args, Debug)]
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
