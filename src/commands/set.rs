//! `mig-mps set`

use clap::Args;

use super::args::{ConsentArgs, DeviceArgs};
use super::change::{Change, ChangeOptions};
use super::{Context, own_directories, remark_on_plan};
use crate::error::{CommandError, Result};
use crate::failure::ExitStatus;
use crate::host::join_words;
use crate::node::Node;
use crate::plan::{self, LeftOut, Plan, Refusal};
use crate::profile::SettingAssignment;
use crate::render::report;
use crate::settings::KEYS;
use crate::state::RunDir;

/// Change settings of a running daemon
///
/// Programs that start afterwards get the new settings; clients keep what they started with. The
/// change lasts until the next `up`, and `plan` shows how it differs from the profile. To keep it, write it
/// into the profile.
#[derive(Args, Debug)]
#[command(
    override_usage = "mig-mps set [OPTIONS] <DEVICE> <KEY=VALUE>...\n       mig-mps set [OPTIONS] --gpu <N> <KEY=VALUE>..."
)]
pub struct SetArgs {
    /// Devices: a name, a UUID, a unique prefix of either, or a glob such as 'trainer-*'
    device: String,
    #[arg(value_name = "KEY=VALUE", required_unless_present = "gpus", help = keys())]
    settings: Vec<SettingAssignment>,
    /// In place of DEVICE: every device of the GPU with index N
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
    format!("Settings: {}", join_words(&names, "or"))
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
        }
        None => {}
    }
    Ok(ExitStatus::Done)
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
