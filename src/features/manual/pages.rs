//! `mig-mps man`

use std::path::PathBuf;

use clap::Args;
use clap_mangen::Man;

use crate::commands::Context;
use crate::error::{ErrorContext as _, Result};
use crate::failure::ExitStatus;
use crate::host::write_files_into;
use crate::render::{examples, report, with_page_form};

use super::TOPICS;
use super::roff::{render_roff, section_of};

/// Write manual pages, for packages
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sudo mig-mps man --dir /usr/local/share/man", "Install the pages"),
]))]
pub struct ManArgs {
    /// Directory for the pages, in its subdirectories man1, man5 and man7
    #[arg(long)]
    dir: PathBuf,
}

/// Writes a manual page for the program, one for each subcommand, and one for each chapter.
pub fn run(args: &ManArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let mut program = with_page_form((context.program)()).disable_help_subcommand(true);
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
    let mut written = 0;
    write_files_into(&args.dir, &[])
        .context(format_args!("cannot write manual pages to {shown}"))?;
    for section in [1, 5, 7] {
        for topic in TOPICS
            .iter()
            .filter(|topic| section_of(topic.name) == section)
        {
            let name = format!("mig-mps-{}.{section}", topic.name);
            pages.push((name, render_roff(topic, section).into_bytes()));
        }
        write_files_into(&args.dir.join(format!("man{section}")), &pages)
            .context(format_args!("cannot write manual pages to {shown}"))?;
        written += pages.len();
        pages.clear();
    }
    report(&format!("wrote {written} pages to {shown}"));
    Ok(ExitStatus::Done)
}
