//! `mig-mps list`

use clap::Args;

use crate::error::{ExitStatus, Result};
use crate::host::Environment;
use crate::node::{Detail, observe};
use crate::render::Ui;

#[derive(Args, Debug)]
pub struct ListArgs {
    /// Also show what each GPU offers: profiles, placements, how many more fit
    #[arg(long)]
    profiles: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Shows GPUs and their MIG devices.
pub fn run(args: &ListArgs, environment: &Environment, ui: &Ui) -> Result<ExitStatus> {
    let node = observe(environment, Detail::Offers)?;
    if args.json {
        ui.list_json(&node)?;
    } else {
        ui.list(&node, args.profiles)?;
    }
    Ok(ExitStatus::Done)
}
