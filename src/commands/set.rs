//! `mig-mps set`

use clap::Args;

use super::change::Change;
use super::consent::ConsentArgs;
use super::{Context, warn};
use crate::error::{ExitStatus, Result};
use crate::node::Detail;
use crate::plan;
use crate::profile::SettingAssignment;
use crate::render::note;

/// Change settings of a running daemon
///
/// Programs that start afterwards get the new settings; clients keep what they started with. The
/// change is recorded: `plan` shows how it differs from the profile, and `up` reverts it.
#[derive(Args, Debug)]
pub struct SetArgs {
    /// Device: its name, its UUID, or a unique prefix of one
    device: String,
    #[arg(value_name = "KEY=VALUE", required = true, help = keys())]
    settings: Vec<SettingAssignment>,
    #[command(flatten)]
    consent: ConsentArgs,
}

fn keys() -> String {
    let keys = SettingAssignment::keys();
    let (last, others) = keys.split_last().unwrap_or((&"", &[]));
    format!("Settings: {} or {last}", others.join(", "))
}

/// Changes settings of a running daemon.
pub fn run(args: &SetArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let environment = context.environment;
    environment.mps_programs()?;
    let devices = std::slice::from_ref(&args.device);
    let directories = environment.directories()?;
    let outcome = Change {
        detail: Detail::Settings,
        remark: &|node, plan| warn(Some(node), plan.memory_limits()),
        ..Change::new(context, &directories, &args.consent, &|node, run_dir| {
            plan::set(node, run_dir, &node.resolve(devices)?[0], &args.settings)
        })
    }
    .run()?;
    match outcome {
        Some(outcome) if outcome.is_unchanged => note("Nothing to do: it is set so."),
        Some(outcome) => outcome.report(devices, &args.consent)?,
        None => {}
    }
    Ok(ExitStatus::Done)
}
