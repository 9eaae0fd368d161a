//! `mig-mps metrics`

mod series;

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;

use crate::commands::args::ProfileSource;
use crate::commands::{Context, cdi, detail_for, print_or_write, up};
use crate::error::Result;
use crate::failure::ExitStatus;
use crate::host::Environment;
use crate::node::{Detail, Observer};
use crate::profile::Profile;
use crate::render::{note, print};
use crate::state::RunDir;

use series::{ALERTS, Drift, metrics};

/// Print metrics of devices in the text format of Prometheus
///
/// Made for the textfile collector of Prometheus' node exporter: a timer runs it with --output FILE. What is unknown has no
/// series; it is never 0. Changes nothing and takes no lock.
#[derive(Args, Debug)]
pub struct MetricsArgs {
    /// Write to this file instead of standard output, replacing it at once
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Also report whether the node is as this profile says; asks every daemon
    #[arg(long, value_name = "PROFILE", value_hint = clap::ValueHint::FilePath)]
    profile: Option<ProfileSource>,
    /// Print alert rules for these metrics instead
    #[arg(long, conflicts_with_all = ["output", "profile"])]
    rules: bool,
}

/// Prints or writes the metrics.
pub fn run(args: &MetricsArgs, context: &Context<'_>) -> Result<ExitStatus> {
    if args.rules {
        print(ALERTS)?;
        return Ok(ExitStatus::Done);
    }
    let environment = context.environment;
    let profile = args.profile.as_ref().map(ProfileSource::load).transpose()?;
    let mut observer = Observer::new(environment);
    let node = observer.observe(Detail {
        utilization: true,
        ..Detail::STATUS
    })?;
    let drift = match &profile {
        Some(profile) if !node.has_no_driver() => drift(profile, &mut observer, environment)?,
        _ => None,
    };
    let text = metrics(&node, drift.as_ref());
    print_or_write(&text, args.output.as_deref())?;
    Ok(ExitStatus::Done)
}

/// Plans the profile; `None` if it cannot be planned, which is no reason to go without the other metrics.
fn drift(
    profile: &Profile,
    observer: &mut Observer<'_>,
    environment: &Environment,
) -> Result<Option<Drift>> {
    up::refuse_unknown_accounts(profile, environment, environment.caller)?;
    let node = observer.observe(detail_for(profile))?;
    let run_dir = RunDir::at(&environment.directories()?.run);
    let plan = match cdi::plan_up(environment, &node, profile, &run_dir, environment.caller) {
        Ok(plan) => plan,
        Err(refusal) => {
            note(&format!(
                "whether the node is as the profile says is unknown: {refusal}"
            ));
            return Ok(None);
        }
    };
    let devices: BTreeSet<String> = plan.devices().map(str::to_owned).collect();
    Ok(Some(Drift {
        is_any: plan.has_changes(),
        devices,
    }))
}
