//! `mig-mps man`

use std::path::PathBuf;

use clap::Args;
use clap_mangen::Man;

use crate::commands::Context;
use crate::error::{ErrorContext as _, Result};
use crate::failure::ExitStatus;
use crate::host::write_files_into;
use crate::render::report;

/// Write manual pages, for packages
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Directory for the pages; created if it does not exist
    #[arg(long)]
    dir: PathBuf,
}

/// Writes a manual page for the program, and one for each subcommand.
pub fn run(args: &ManArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let mut program = (context.program)().disable_help_subcommand(true);
    // Gives the subcommands their full names.
    program.build();
    let mut pages = Vec::new();
    for command in program.get_subcommands().chain([&program]) {
        let page = Man::new(command.clone()).source(concat!("mig-mps ", env!("CARGO_PKG_VERSION")));
        let mut text = Vec::new();
        page.render(&mut text)?;
        pages.push((page.get_filename(), text));
    }
    let shown = args.dir.display();
    write_files_into(&args.dir, &pages)
        .context(format_args!("cannot write manual pages to {shown}"))?;
    report(&format!("wrote {} pages to {shown}", pages.len()));
    Ok(ExitStatus::Done)
}
