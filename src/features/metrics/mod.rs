//! `mig-mps metrics`

mod clients;
mod series;

use std::fmt::Display;
use std::path::PathBuf;

use clap::Args;

use crate::commands::args::ProfileSource;
use crate::commands::up_request::UpRequest;
use crate::commands::{Context, accounts, detail_for, print_or_write};
use crate::error::{Result, usage_error};
use crate::failure::ExitStatus;
use crate::host::{Environment, format_gpus};
use crate::node::{Detail, Node, Observer};
use crate::profile::Profile;
use crate::render::{examples, note, print};
use crate::state::RunDir;

use series::{ALERTS, Drift, render_drift_metrics, render_metrics};

/// Print metrics for Prometheus
///
/// Prints the text format for the textfile collector of a node exporter. `mig-mps systemd --metrics DIR` installs timers
/// that write the files. A value that cannot be observed has no series. Changes nothing and does not take the lock.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sudo mig-mps metrics -o /var/lib/prom/mig-mps.prom", "Write a file"),
    ("mig-mps metrics --rules > alerts.yml", "Write alert rules"),
]))]
pub struct MetricsArgs {
    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Also report drift from PROFILE (queries every daemon)
    #[arg(long, value_name = "PROFILE", value_hint = clap::ValueHint::FilePath)]
    profile: Option<ProfileSource>,
    /// Report only the drift from PROFILE [default: /etc/mig-mps/profile.toml]
    #[arg(long, value_name = "PROFILE", conflicts_with = "profile", value_hint = clap::ValueHint::FilePath)]
    #[expect(
        clippy::option_option,
        reason = "an option whose value can be left out"
    )]
    drift: Option<Option<ProfileSource>>,
    /// Print alert rules instead of metrics
    #[arg(long, conflicts_with_all = ["output", "profile", "drift"])]
    rules: bool,
}

/// Prints or writes the metrics.
pub fn run(args: &MetricsArgs, context: &Context<'_>) -> Result<ExitStatus> {
    if args.rules {
        print(ALERTS)?;
        return Ok(ExitStatus::Done);
    }
    let environment = context.environment;
    let mut observer = Observer::new(environment);
    let text = if let Some(profile) = &args.drift {
        let profile = named_or_boot_profile(profile.as_ref(), environment)?;
        let (node, drift) = observe_drift(&profile, &mut observer, environment)?;
        render_drift_metrics(&node, &drift)
    } else {
        let profile = args.profile.as_ref().map(ProfileSource::load).transpose()?;
        let node = observer.observe(Detail {
            utilization: true,
            ..Detail::STATUS
        })?;
        let drift = match &profile {
            Some(_) if node.has_no_driver() => Some(Drift::Unknown),
            Some(profile) => Some(observe_drift(profile, &mut observer, environment)?.1),
            None => None,
        };
        render_metrics(&node, drift.as_ref())
    };
    print_or_write(&text, args.output.as_deref())?;
    Ok(ExitStatus::Done)
}

fn named_or_boot_profile(
    named: Option<&ProfileSource>,
    environment: &Environment,
) -> Result<Profile> {
    if let Some(named) = named {
        return named.load();
    }
    let boot = environment.host.boot_profile().path();
    if matches!(boot.try_exists(), Ok(false)) {
        return Err(usage_error(format_args!(
            "there is no profile to compare the node with: {} does not exist",
            boot.display()
        ))
        .with_hint("give a profile: `mig-mps metrics --drift PROFILE`"));
    }
    ProfileSource::from(&*boot.to_string_lossy()).load()
}

/// Plans the profile on a new snapshot, which it returns, too. Where that fails, the drift is unknown, and other metrics are
/// shown all the same.
fn observe_drift(
    profile: &Profile,
    observer: &mut Observer<'_>,
    environment: &Environment,
) -> Result<(Node, Drift)> {
    let looked_up = accounts::check_accounts(profile, environment, environment.caller);
    let no_answer = match looked_up {
        Err(error) if error.status == ExitStatus::Failed => Some(error),
        other => other.map(|()| None)?,
    };
    let node = match observer.observe(detail_for(profile)) {
        Ok(node) => node,
        Err(error) => {
            note_unknown(error);
            return Ok((Node::default(), Drift::Unknown));
        }
    };
    if let Some(error) = no_answer {
        note_unknown(error);
        return Ok((node, Drift::Unknown));
    }
    let run_dir = RunDir::at(&environment.directories()?.run);
    let request = UpRequest {
        environment,
        profile,
        caller: environment.caller,
        prune: false,
    };
    let drift = match request.plan(&node, &run_dir, None) {
        Ok(plan) if !plan.lost_gpus.is_empty() => {
            let gpus = format_gpus(&plan.lost_gpus);
            let is = if plan.lost_gpus.len() == 1 {
                "is"
            } else {
                "are"
            };
            note_unknown(format_args!("{gpus} {is} lost"));
            Drift::Unknown
        }
        Ok(plan) => Drift::Known {
            is_any: plan.differs_from_node(),
            devices: plan
                .without_closes()
                .device_names()
                .map(str::to_owned)
                .collect(),
        },
        Err(refusal) => {
            note_unknown(refusal);
            Drift::Unknown
        }
    };
    Ok((node, drift))
}

fn note_unknown(why: impl Display) {
    note(&format!(
        "it is unknown whether the node matches its profile: {why}"
    ));
}
