//! `mig-mps profiles`

use clap::Args;
use clap::builder::PossibleValuesParser;

use super::Context;
use crate::catalog::BuiltIn;
use crate::error::Result;
use crate::failure::ExitStatus;
use crate::render::{print, profiles, width};

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
        None => print(&profiles::text(&BuiltIn::all(), width()))?,
    }
    Ok(ExitStatus::Done)
}
