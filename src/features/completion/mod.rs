//! Completion: the scripts for shells, and what they ask mig-mps for.

mod candidates;
pub mod complete;

use std::io::IsTerminal;

use clap::{Args, ValueEnum};

use crate::commands::Context;
use crate::error::Result;
use crate::failure::ExitStatus;
use crate::render::{examples, print, report};

pub use candidates::Sources;

/// Print a completion script for a shell
///
/// The script asks mig-mps for candidates, so that it also completes the current devices, clients and settings. Its first
/// lines list the paths at which shells look for it.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("mig-mps completions bash > /etc/bash_completion.d/mig-mps", ""),
    ("mig-mps completions zsh > /usr/local/share/zsh/site-functions/_mig-mps", ""),
    ("mig-mps completions fish > /etc/fish/completions/mig-mps.fish", ""),
]))]
pub struct CompletionsArgs {
    /// Shell that the script is for
    shell: Shell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    /// /etc/bash_completion.d/mig-mps, or ~/.local/share/bash-completion/completions/mig-mps
    Bash,
    /// _mig-mps in a directory of $fpath, such as /usr/local/share/zsh/site-functions
    Zsh,
    /// /etc/fish/completions/mig-mps.fish, or ~/.config/fish/completions/mig-mps.fish
    Fish,
}

impl Shell {
    fn script(self) -> &'static str {
        match self {
            Self::Bash => include_str!("../../../completions/mig-mps.bash"),
            Self::Zsh => include_str!("../../../completions/mig-mps.zsh"),
            Self::Fish => include_str!("../../../completions/mig-mps.fish"),
        }
    }
}

/// Prints a shell's completion script, and on a terminal where it goes.
pub fn run(args: &CompletionsArgs, _context: &Context<'_>) -> Result<ExitStatus> {
    print(args.shell.script())?;
    let place = args.shell.to_possible_value();
    if let Some(place) = place.as_ref().and_then(|place| place.get_help())
        && std::io::stdout().is_terminal()
    {
        report(&format!("Write it to {place}"));
    }
    Ok(ExitStatus::Done)
}
