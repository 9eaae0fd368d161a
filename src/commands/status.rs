//! `mig-mps status`

use anyhow::Result;
use clap::Args;

use super::tell_of_interrupted;
use crate::environment::Environment;
use crate::node::{Look, observe};
use crate::render::Ui;

/// The flags of `status`.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// Only these devices: a name, a UUID, or the unique beginning of one
    #[arg(value_name = "DEVICE")]
    devices: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Shows MPS servers and their clients.
///
/// # Errors
/// Where NVML does not answer, or a device is not there.
pub fn run(args: &StatusArgs, environment: &Environment, ui: &Ui) -> Result<()> {
    let node = observe(environment, Look::Status)?;
    let devices = node.resolve(&args.devices)?;
    tell_of_interrupted(environment, ui);
    if args.json {
        ui.status_json(&node, &devices)
    } else {
        ui.status(&node, &devices)
    }
}
