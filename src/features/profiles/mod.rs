//! `mig-mps profiles`

use clap::Args;
use clap::builder::PossibleValuesParser;
use jiff::tz::TimeZone;

use crate::catalog::BuiltIn;
use crate::commands::Context;
use crate::commands::built_in::{devices_on, gpus_of_node};
use crate::commands::chosen::{HISTORY, readable};
use crate::error::{Result, failed};
use crate::failure::ExitStatus;
use crate::plan::virtual_node::EmptyNode;
use crate::render::format::{count, shown_or};
use crate::render::table::{Column, Table};
use crate::render::{hanging, note, print_as_it_is, width};
use crate::state::{AppliedProfile, ProfileHistory};

/// List the built-in profiles, or print one; show the profiles that were applied
///
/// Every command that takes a profile takes the name of a built-in one. The list shows which fit the GPUs of
/// this node. To change a profile, print it into a file of your own. The last ten profiles that were applied to this node are kept, with their text.
#[derive(Args, Debug)]
pub struct ProfilesArgs {
    /// Built-in profile to print
    #[arg(
        group = "what",
        value_parser = PossibleValuesParser::new(BuiltIn::all().iter().map(|profile| profile.name)),
    )]
    name: Option<String>,
    /// Print the profile that was applied last, as it was then
    #[arg(long, group = "what")]
    applied: bool,
    /// List the profiles that were applied, the last one first; with N, print that one
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
            let history = ProfileHistory::shown(context.environment);
            of_applied(args, &readable(history)?)?
        }
        Some(name) => BuiltIn::named(name).map_or_else(String::new, |profile| profile.text.into()),
        None => list_of_built_in(gpus_of_node(context.environment).as_ref()),
    };
    print_as_it_is(&text)?;
    Ok(ExitStatus::Done)
}

/// Lists the built-in profiles, with what each makes of these GPUs.
fn list_of_built_in(gpus: Option<&EmptyNode>) -> String {
    let profiles = BuiltIn::all();
    let names = profiles.iter().map(|profile| profile.name.len());
    let widest = names.max().unwrap_or(0);
    let Some(gpus) = gpus else {
        let mut text = format!("{:widest$}  DESCRIPTION\n", "NAME");
        for profile in profiles {
            let head = format!("{:widest$}  ", profile.name);
            text += &hanging(&head, profile.summary(), width());
        }
        return text;
    };
    let mut text = format!("{:widest$}  {FITS}  DESCRIPTION\n", "NAME");
    let mut all_fit = true;
    for profile in profiles {
        let fits = match devices_on(&profile, gpus) {
            Ok(devices) => count(devices, "device"),
            Err(_) => "no".to_owned(),
        };
        all_fit &= fits != "no";
        let head = format!("{:widest$}  {fits:1$}  ", profile.name, FITS.len());
        text += &hanging(&head, profile.summary(), width());
    }
    if !all_fit {
        note("mig-mps check NAME explains why a profile does not fit.");
    }
    text
}

/// The title of the column with what a profile makes of this node.
const FITS: &str = "FITS THIS NODE";

/// Answers a question about the profiles that were applied.
fn of_applied(args: &ProfilesArgs, history: &ProfileHistory) -> Result<String> {
    let Some((_, applied)) = history.numbered().next() else {
        return Err(failed("no profile is recorded")
            .hint("mig-mps up PROFILE applies one, and records it where it succeeds"));
    };
    match args.history {
        Some(Some(number)) => Ok(numbered(history, number)?.text.clone()),
        Some(None) => Ok(table(history).within(width(), "")),
        None => Ok(applied.text.clone()),
    }
}

fn numbered(history: &ProfileHistory, wanted: u64) -> Result<&AppliedProfile> {
    for (number, profile) in history.numbered() {
        if number == wanted {
            return Ok(profile);
        }
    }
    let what = format_args!("no profile with the number {wanted} is recorded");
    Err(failed(what).hint(HISTORY))
}

fn table(history: &ProfileHistory) -> Table {
    let mut table = Table::new(vec![
        Column::right("NUMBER", 0),
        Column::left("APPLIED", 0),
        Column::left("BY", 0),
        Column::right("DEVICES", 0),
        Column::left("NAME", 0),
        Column::left("PATH", 0).cut(20),
    ]);
    for (number, profile) in history.numbered() {
        table.row(vec![
            number.to_string(),
            time(profile),
            profile.by.clone(),
            profile.devices.to_string(),
            shown_or(profile.name.as_ref(), "-"),
            profile.path.clone(),
        ]);
    }
    table
}

/// The time at which a profile was applied, where the machine is.
fn time(profile: &AppliedProfile) -> String {
    let at = profile.at.to_zoned(TimeZone::system());
    at.strftime("%Y-%m-%d %H:%M:%S").to_string()
}
