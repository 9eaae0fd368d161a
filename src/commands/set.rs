//! `mig-mps set`

use clap::Args;

use super::args::{ConsentArgs, DeviceArgs, REFUSED_STATUS};
use super::change::{Change, ChangeOptions};
use super::{Context, own_directories, remark_on_plan};
use crate::error::{CommandError, Result};
use crate::failure::ExitStatus;
use crate::host::{group_by, join_words};
use crate::node::Node;
use crate::plan::{self, LeftOut, Plan, Refusal};
use crate::profile::SettingAssignment;
use crate::render::format::shorten_list;
use crate::render::{examples_and_statuses, report};
use crate::settings::{ACTIVE_THREAD_PERCENTAGE, KEYS};
use crate::state::RunDir;

/// Change settings of a running device
///
/// Programs that start later get the new settings; clients keep the settings with which they started. The change lasts
/// until the next `up`. To keep it, also change the profile.
#[derive(Args, Debug)]
#[command(
    override_usage = "mig-mps set [OPTIONS] <DEVICE> <KEY=VALUE>...\n       mig-mps set [OPTIONS] --gpu <N> <KEY=VALUE>...",
    after_help = examples_and_statuses(&[
        ("sudo mig-mps set 0.0 threads=50", "Limit each client to half of the SMs"),
        ("sudo mig-mps set 'trainer-*' memory=8G", "Limit memory on several devices"),
        ("sudo mig-mps set --gpu 0 share=4", "Divide each device of GPU 0 by 4"),
    ], &[REFUSED_STATUS])
)]
pub struct SetArgs {
    /// Device name, UUID, unique prefix, or glob such as 'trainer-*'
    device: String,
    #[arg(value_name = "KEY=VALUE", required_unless_present = "gpus", help = keys())]
    settings: Vec<SettingAssignment>,
    /// Change every device of GPU N, instead of DEVICE
    #[arg(long = "gpu", value_name = "N")]
    gpus: Vec<String>,
    #[command(flatten)]
    consent: ConsentArgs,
}

fn keys() -> String {
    let names: Vec<String> = KEYS
        .iter()
        .filter(|key| key.is_live())
        .map(|key| match key.short_name() {
            Some(short) => format!("{} ({short})", key.name),
            None => key.name.to_owned(),
        })
        .collect();
    format!("Setting: {}", join_words(&names, "or"))
}

/// Changes settings of a running daemon.
pub fn run(args: &SetArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let environment = context.environment;
    environment.mps_programs()?;
    let (devices, settings) =
        DeviceArgs::parse_with_values(&args.device, &args.gpus, &args.settings, str::parse)?;
    SettingAssignment::check_names(&settings).map_err(|problem| CommandError {
        status: ExitStatus::Usage,
        ..problem.into()
    })?;
    let directories = own_directories(environment, &args.consent)?;
    let options = ChangeOptions::new(environment, &directories, &args.consent);
    let outcome = options.run(&mut SetChange {
        devices: &devices,
        settings: &settings,
    })?;
    match outcome {
        Some(outcome) if outcome.is_unchanged && !args.consent.json => {
            report("Nothing to do: the settings are already in effect.");
        }
        Some(outcome) => {
            let names = devices.resolve_names(&outcome.node)?;
            outcome.report(environment, &names, &args.consent, None)?;
            outcome.print_summary(&names, &args.consent);
            if !args.consent.json {
                for line in describe_sms(&outcome.node, &outcome.plan) {
                    report(&line);
                }
                report(
                    "The next `mig-mps up` resets this. To keep it, copy it from `mig-mps export`.",
                );
            }
        }
        None => {}
    }
    Ok(ExitStatus::Done)
}

/// Describes how many SMs a program can use of devices whose percentage was set, equal devices in one line. The plan
/// describes a device with a share.
fn describe_sms(node: &Node, plan: &Plan) -> Vec<String> {
    let sms = plan.sets().filter_map(|set| {
        let mut keys = set.changes.iter().map(|change| change.key);
        if set.settings.share.is_some() || !keys.any(|key| key == ACTIVE_THREAD_PERCENTAGE) {
            return None;
        }
        let device = node.devices.iter().find(|device| device.uuid == set.uuid)?;
        let all = node.size_of(device)?.multiprocessors?;
        let tenths = set.settings.active_thread_percentage.to_tenths();
        let of_each = if device.key.is_joint() {
            " of each GPU"
        } else {
            ""
        };
        let each = all.usable_at(tenths);
        let in_pairs = if each * 1000 == all.all * tenths {
            ""
        } else {
            " (assigned in pairs)"
        };
        let sms = format!("{each} of {} SMs{of_each}{in_pairs}", all.all);
        Some((sms, set.name.as_str()))
    });
    group_by(sms, |(sms, _), (other, _)| sms == other)
        .into_iter()
        .map(|group| {
            let names: Vec<&str> = group.iter().map(|(_, name)| *name).collect();
            let sms = &group[0].0;
            {
                let devices = if names.len() == 1 {
                    "device"
                } else {
                    "devices"
                };
                format!(
                    "Each new program on {devices} {} can use {sms}.",
                    shorten_list(&names)
                )
            }
        })
        .collect()
}

/// The change of settings.
struct SetChange<'a> {
    devices: &'a DeviceArgs,
    settings: &'a [SettingAssignment],
}

impl Change for SetChange<'_> {
    fn plan(
        &mut self,
        node: &Node,
        run_dir: &RunDir,
        _left_out: Option<&mut LeftOut>,
    ) -> Result<Plan, Refusal> {
        plan::set(
            node,
            run_dir,
            &self.devices.resolve_names(node)?,
            self.settings,
        )
    }

    fn remark(&self, node: &Node, plan: &Plan) {
        remark_on_plan(node, plan);
    }
}
