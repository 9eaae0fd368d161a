//! `mig-mps completions`

use clap::{Args, Command};
use clap_complete::Shell;

use super::Context;
use crate::error::{ExitStatus, Result};
use crate::render::print;

/// Print a shell's completion script
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Which shell's
    shell: Shell,
}

/// Prints a shell's completion script.
pub fn run(args: &CompletionsArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let program = (context.program)();
    // Hidden subcommands would be completed too.
    let shown = program.get_subcommands().filter(|sub| !sub.is_hide_set());
    let mut program = Command::new("mig-mps")
        .disable_help_subcommand(true)
        .version(env!("CARGO_PKG_VERSION"))
        .after_long_help(program.get_after_long_help().cloned().unwrap_or_default())
        .args(program.get_arguments())
        .subcommands(shown);
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "mig-mps", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(ExitStatus::Done)
}
