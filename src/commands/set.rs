//! `mig-mps set`

use clap::Args;

use super::change::{Change, ConsentArgs, Outcome};
use super::warn;
use crate::apply::{Allowed, OnFailure};
use crate::error::{ExitStatus, Result};
use crate::host::Environment;
use crate::node::Detail;
use crate::plan;
use crate::profile::SettingAssignment;
use crate::render::Ui;

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
pub fn run(args: &SetArgs, environment: &Environment, ui: &Ui) -> Result<ExitStatus> {
    environment.mps_programs()?;
    let devices = std::slice::from_ref(&args.device);
    let outcome = Change {
        environment,
        ui,
        consent: &args.consent,
        allowed: Allowed::default(),
        on_failure: OnFailure::RollBack,
        detail: Detail::Settings,
        planner: &|node, run_dir| {
            plan::set(node, run_dir, &node.resolve(devices)?[0], &args.settings)
        },
        remark: &|node, plan| warn(Some(node), plan.memory_limits(), ui),
        needs_consent: &|_| true,
        verify: false,
    }
    .run()?;
    if matches!(outcome, Outcome::Unchanged(_)) {
        ui.note("Nothing to do: it is set so.");
        return Ok(ExitStatus::Done);
    }
    outcome.report(devices, &args.consent, ui)?;
    Ok(ExitStatus::Done)
}
