//! `mig-mps list`

use clap::Args;

use super::Context;
use crate::error::{ExitStatus, Result};
use crate::node::{Detail, observe};
use crate::render::{list, print, print_json, width};

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
    let node = observe(context.environment, Detail::Offers)?;
    if args.json {
        print_json(&list::json(&node))?;
    } else {
        print(&list::text(&node, args.profiles, width()))?;
    }
    Ok(ExitStatus::Done)
}
