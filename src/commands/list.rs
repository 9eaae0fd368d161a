//! `mig-mps list`

use clap::Args;

use super::Context;
use crate::error::{ExitStatus, Result};
use crate::node::{Detail, observe};

/// Show GPUs and their MIG devices
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
pub fn run(args: &ListArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let Context {
        environment, ui, ..
    } = *context;
    let node = observe(environment, Detail::Offers)?;
    if args.json {
        ui.list_json(&node)?;
    } else {
        ui.list(&node, args.profiles)?;
    }
    Ok(ExitStatus::Done)
}
