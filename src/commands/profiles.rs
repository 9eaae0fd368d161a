//! `mig-mps profiles`

use clap::Args;
use clap::builder::PossibleValuesParser;

use super::Context;
use crate::catalog::BuiltIn;
use crate::error::Result;
use crate::failure::ExitStatus;
use crate::render::{hanging, print, width};

/// List the built-in profiles, or print one
///
/// Every command that takes a profile takes the name of a built-in one. To change one, print it into a
/// file of your own.
#[derive(Args, Debug)]
pub struct ProfilesArgs {
    /// Profile to print
    #[arg(value_parser = PossibleValuesParser::new(BuiltIn::all().iter().map(|profile| profile.name)))]
    name: Option<String>,
}

/// Lists the built-in profiles, or prints one.
pub fn run(args: &ProfilesArgs, _context: &Context<'_>) -> Result<ExitStatus> {
    match args.name.as_deref().and_then(BuiltIn::named) {
        Some(profile) => print(profile.text)?,
        None => print(&list(&BuiltIn::all(), width()))?,
    }
    Ok(ExitStatus::Done)
}

/// Formats the list of built-in profiles.
fn list(profiles: &[BuiltIn], width: usize) -> String {
    let widest = profiles
        .iter()
        .map(|profile| profile.name.len())
        .max()
        .unwrap_or(0);
    let heading = format!("{:widest$}  DESCRIPTION\n", "NAME");
    let rows = profiles.iter().map(|profile| {
        let head = format!("{:widest$}  ", profile.name);
        hanging(&head, profile.summary(), width)
    });
    [heading].into_iter().chain(rows).collect()
}
