//! `mig-mps profiles`

use clap::Args;
use clap::builder::PossibleValuesParser;
use jiff::tz::TimeZone;

use crate::catalog::BuiltIn;
use crate::commands::Context;
use crate::commands::built_in::{count_devices_on, gpus_of_node};
use crate::commands::profile_source::{HISTORY_HINT, require_history};
use crate::error::{Result, command_error};
use crate::failure::ExitStatus;
use crate::plan::virtual_node::EmptyNode;
use crate::render::format::{display_or, format_count};
use crate::render::table::{Column, Table};
use crate::render::{examples, note, output_width, print, wrap_behind};
use crate::state::{AppliedProfile, ProfileHistory};

/// Show built-in and previously applied profiles
///
/// Lists the built-in profiles, and whether each fits the GPUs of this node. You can pass the name of a built-in profile
/// to every command that accepts a profile. To change one, print it to a file. mig-mps keeps the text of the last ten
/// applied profiles.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("mig-mps profiles", "List the built-in profiles"),
    ("mig-mps profiles balanced > profile.toml", "Copy a built-in profile"),
    ("mig-mps profiles --history", "List the applied profiles"),
]))]
pub struct ProfilesArgs {
    /// Built-in profile to print
    #[arg(
        group = "what",
        value_parser = PossibleValuesParser::new(BuiltIn::all().iter().map(|profile| profile.name)),
    )]
    name: Option<String>,
    /// Print the last applied profile
    #[arg(long, group = "what")]
    applied: bool,
    /// List the applied profiles, or print number N
    #[arg(long, value_name = "N", group = "what")]
    #[expect(
        clippy::option_option,
        reason = "an option whose value can be left out"
    )]
    history: Option<Option<u64>>,
}

/// Lists the built-in profiles, or prints one; shows the profiles that were applied.
pub fn run(args: &ProfilesArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let text = match &args.name {
        _ if args.applied || args.history.is_some() => {
            let history = ProfileHistory::load_for_caller(context.environment);
            render_applied(args, &require_history(history)?)?
        }
        Some(name) => {
            BuiltIn::find_by_name(name).map_or_else(String::new, |profile| profile.text.into())
        }
        None => render_built_in(gpus_of_node(context.environment).as_ref()),
    };
    print(&text)?;
    Ok(ExitStatus::Done)
}

/// Lists the built-in profiles, with what each makes of these GPUs.
fn render_built_in(gpus: Option<&EmptyNode>) -> String {
    let profiles = BuiltIn::all();
    let widest = profiles
        .iter()
        .map(|profile| profile.name.len())
        .max()
        .unwrap_or(0);
    let Some(gpus) = gpus else {
        let mut text = format!("{:widest$}  DESCRIPTION\n", "NAME");
        for profile in profiles {
            let head = format!("{:widest$}  ", profile.name);
            text += &wrap_behind(&head, profile.summary(), output_width());
        }
        return text;
    };
    let mut text = format!("{:widest$}  {FITS_TITLE}  DESCRIPTION\n", "NAME");
    let mut all_fit = true;
    for profile in profiles {
        let fits = match count_devices_on(&profile, gpus) {
            Ok(devices) => format_count(devices, "device"),
            Err(_) => "no".to_owned(),
        };
        all_fit &= fits != "no";
        let head = format!("{:widest$}  {fits:1$}  ", profile.name, FITS_TITLE.len());
        text += &wrap_behind(&head, profile.summary(), output_width());
    }
    if !all_fit {
        note("run `mig-mps check NAME` to see why a profile does not fit");
    }
    text
}

/// The title of the column with what a profile makes of this node.
const FITS_TITLE: &str = "FITS THIS NODE";

/// Answers a question about the profiles that were applied.
fn render_applied(args: &ProfilesArgs, history: &ProfileHistory) -> Result<String> {
    let Some((_, applied)) = history.numbered_profiles().next() else {
        return Err(command_error("no profile is recorded")
            .with_hint("run `mig-mps up PROFILE` to apply a profile, which also records it"));
    };
    match args.history {
        Some(Some(number)) => Ok(profile_by_number(history, number)?.text.clone()),
        Some(None) => Ok(history_table(history).render(output_width(), "")),
        None => Ok(applied.text.clone()),
    }
}

fn profile_by_number(history: &ProfileHistory, wanted: u64) -> Result<&AppliedProfile> {
    for (number, profile) in history.numbered_profiles() {
        if number == wanted {
            return Ok(profile);
        }
    }
    let what = format_args!("no profile with the number {wanted} is recorded");
    Err(command_error(what).with_hint(HISTORY_HINT))
}

fn history_table(history: &ProfileHistory) -> Table {
    let mut table = Table::new(vec![
        Column::right_aligned("NUMBER", 0),
        Column::left_aligned("APPLIED", 0),
        Column::left_aligned("BY", 0),
        Column::right_aligned("DEVICES", 0),
        Column::left_aligned("NAME", 0),
        Column::left_aligned("PATH", 0).with_least_width(20),
    ]);
    for (number, profile) in history.numbered_profiles() {
        table.add_row(vec![
            number.to_string(),
            format_time(profile),
            profile.by.clone(),
            profile.devices.to_string(),
            display_or(profile.name.as_ref(), "-"),
            profile.path.clone(),
        ]);
    }
    table
}

/// The time at which a profile was applied, where the machine is.
fn format_time(profile: &AppliedProfile) -> String {
    let at = profile.at.to_zoned(TimeZone::system());
    at.strftime("%Y-%m-%d %H:%M:%S").to_string()
}
