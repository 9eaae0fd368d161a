//! `mig-mps completions`

use anyhow::Result;
use clap::Args;
use clap_complete::Shell;

use crate::cli;

/// The flags of `completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Which shell's
    shell: Shell,
}

/// Prints a shell's completion script.
///
/// # Errors
/// Never: the signature is every command's.
#[allow(clippy::unnecessary_wraps, reason = "every command has this signature")]
pub fn run(args: &CompletionsArgs) -> Result<()> {
    clap_complete::generate(
        args.shell,
        &mut cli::command(),
        "mig-mps",
        &mut std::io::stdout(),
    );
    Ok(())
}
