//! `mig-mps set`

use clap::Args;

use super::args::{ConsentArgs, DeviceArgs, REFUSED_STATUS};
use super::change::{Change, ChangeOptions};
use super::{Context, own_directories, remark_on_plan};
use crate::error::{CommandError, Result};
use crate::failure::ExitStatus;
use crate::host::{group_by, join_words};
use crate::node::{Node, Observer};
use crate::plan::{self, LeftOut, Plan, Refusal, Set};
use crate::profile::SettingAssignment;
use crate::render::format::shorten_list;
use crate::render::{examples_and_statuses, report};
use crate::settings::{ACTIVE_THREAD_PERCENTAGE, KEYS, Percentage};
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
    let options = ChangeOptions {
        observer: Observer::new(environment).asking_only(&devices),
        ..ChangeOptions::new(environment, &directories, &args.consent)
    };
    let outcome = options.run(&mut SetChange {
        devices: &devices,
        settings: &settings,
    })?;
    match outcome {
        Some(outcome) if outcome.is_unchanged && !args.consent.json => {
            report("Nothing to do: the settings are already in effect.");
        }
        Some(outcome) => {
            let names = devices.resolve_served_names(&outcome.node)?;
            outcome.report(environment, &names, &args.consent, None)?;
            outcome.print_summary(&names, &args.consent);
            if !args.consent.json {
                for line in describe_sms(&outcome.node, &outcome.plan) {
                    report(&line);
                }
                report("The next `mig-mps up` undoes the change; see `mig-mps export` to keep it.");
            }
        }
        None => {}
    }
    Ok(ExitStatus::Done)
}

/// Describes how many SMs a program can use on devices whose percentage was set. Equal devices share a line. Devices with a
/// share are left out, because the plan already describes them.
fn describe_sms(node: &Node, plan: &Plan) -> Vec<String> {
    let usable = plan
        .sets()
        .filter_map(|set| Some((usable_sms(node, set)?, set.name.as_str())));
    group_by(usable, |(sms, _), (other, _)| sms == other)
        .into_iter()
        .map(|group| {
            let names: Vec<&str> = group.iter().map(|(_, name)| *name).collect();
            let devices = if names.len() == 1 {
                "device"
            } else {
                "devices"
            };
            format!(
                "Each new program on {devices} {} can use {}.",
                shorten_list(&names),
                group[0].0
            )
        })
        .collect()
}

/// `6 of 14 SMs (assigned in pairs)`; `None` if the percentage was not set, or the device has a share.
fn usable_sms(node: &Node, set: &Set) -> Option<String> {
    let mut keys = set.changes.iter().map(|change| change.key);
    if set.settings.share.is_some() || !keys.any(|key| key == ACTIVE_THREAD_PERCENTAGE) {
        return None;
    }
    let device = node.devices.iter().find(|device| device.uuid == set.uuid)?;
    let all = node.size_of(device)?.multiprocessors?;
    let threads = set.settings.active_thread_percentage;
    let each = all.usable_at(threads.to_tenths());
    let mut text = format!("{each} of {} SMs", all.all);
    if device.key.is_joint() {
        text += " of each GPU";
    }
    if threads < Percentage::FULL {
        text += " (assigned in pairs)";
    }
    Some(text)
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
            &self.devices.resolve_served_names(node)?,
            self.settings,
        )
    }

    fn remark(&self, node: &Node, plan: &Plan) {
        remark_on_plan(node, plan);
    }
}
