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
    if let Some(profile) = args.name.as_deref().and_then(BuiltIn::named) {
        print(profile.text)?;
        return Ok(ExitStatus::Done);
    }
    let profiles = BuiltIn::all();
    let names = profiles.iter().map(|profile| profile.name.len());
    let widest = names.max().unwrap_or(0);
    let mut text = format!("{:widest$}  DESCRIPTION\n", "NAME");
    for profile in profiles {
        let head = format!("{:widest$}  ", profile.name);
        text += &hanging(&head, profile.summary(), width());
    }
    print(&text)?;
    Ok(ExitStatus::Done)
}
