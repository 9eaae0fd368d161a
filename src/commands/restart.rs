//! `mig-mps restart`

use clap::Args;

use super::change::{Change, ConsentArgs};
use crate::apply::{Allowed, OnFailure};
use crate::error::{ExitStatus, Result};
use crate::host::Environment;
use crate::node::Detail;
use crate::plan;
use crate::render::Ui;

#[derive(Args, Debug)]
pub struct RestartArgs {
    /// Devices: a name, a UUID, or a unique prefix of one
    #[arg(value_name = "DEVICE", required = true)]
    devices: Vec<String>,
    #[command(flatten)]
    consent: ConsentArgs,
}

/// Restarts daemons with their recorded settings.
pub fn run(args: &RestartArgs, environment: &Environment, ui: &Ui) -> Result<ExitStatus> {
    environment.mps_programs()?;
    let outcome = Change {
        environment,
        ui,
        consent: &args.consent,
        allowed: Allowed::default(),
        on_failure: OnFailure::RollBack,
        detail: Detail::Clients,
        planner: &|node, run_dir| plan::restart(node, run_dir, &node.resolve(&args.devices)?),
        remark: &|_, _| {},
        needs_consent: &|_| true,
        verify: false,
    }
    .run()?;
    outcome.report(&args.devices, &args.consent, ui)?;
    Ok(ExitStatus::Done)
}
