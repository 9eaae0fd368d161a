//! `mig-mps completions`

use clap::Args;
use clap_complete::Shell;

use crate::cli;
use crate::error::{ExitStatus, Result};
use crate::render::Ui;

/// The flags of `completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Which shell's
    shell: Shell,
}

/// Prints a shell's completion script.
///
/// # Errors
/// When standard output cannot be written.
pub fn run(args: &CompletionsArgs, ui: &Ui) -> Result<ExitStatus> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::command(), "mig-mps", &mut script);
    ui.text(&String::from_utf8_lossy(&script))?;
    Ok(ExitStatus::Done)
}
