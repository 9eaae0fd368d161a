//! `mig-mps man`

use std::fs;
use std::path::PathBuf;

use clap::Args;
use clap_mangen::Man;

use super::Context;
use crate::error::{Context as _, ExitStatus, Result};
use crate::render::note;

/// Write manual pages, for packages
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Directory for the pages; created if it does not exist
    #[arg(long)]
    dir: PathBuf,
}

/// Writes a manual page for the program, and one for each subcommand.
pub fn run(args: &ManArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let failed = || format!("cannot write manual pages to {}", args.dir.display());
    fs::create_dir_all(&args.dir).context(failed())?;
    let mut program = (context.program)().disable_help_subcommand(true);
    // Gives the subcommands their full names.
    program.build();
    let mut pages = 0;
    for command in program.get_subcommands().chain([&program]) {
        Man::new(command.clone())
            .source(concat!("mig-mps ", env!("CARGO_PKG_VERSION")))
            .generate_to(&args.dir)
            .context(failed())?;
        pages += 1;
    }
    note(&format!("wrote {pages} pages to {}", args.dir.display()));
    Ok(ExitStatus::Done)
}
