//! `mig-mps export`

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::convert::{export, to_mig_parted};
use crate::error::{CommandError, ExitStatus, Result};
use crate::host::Environment;
use crate::node::{Detail, observe};
use crate::render::Ui;
use crate::state::RunDir;

/// The flags of `export`.
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// In which form
    #[arg(long, value_enum, default_value_t = Format::Toml)]
    format: Format,
}

/// A form to export in.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// A profile of mig-mps: geometry, names and MPS settings
    Toml,
    /// A configuration of mig-parted: geometry alone
    MigParted,
}

/// Prints what the node has as a profile.
///
/// # Errors
/// Where NVML does not answer, or the node has nothing that a profile could say.
pub fn run(args: &ExportArgs, environment: &Environment, ui: &Ui) -> Result<ExitStatus> {
    let node = observe(environment, Detail::Offers)?;
    match args.format {
        Format::MigParted => {
            let (text, lost) = to_mig_parted(&node);
            ui.text(&text)?;
            for lost in lost {
                ui.note(&format!("{lost}."));
            }
        }
        Format::Toml => {
            // A caller without a directory for daemons has none either.
            let nowhere = || PathBuf::from("/run/mig-mps");
            let home = environment
                .home()
                .map_or_else(|_| nowhere(), |home| home.run);
            let exported = export(&node, &RunDir::at(&home), environment.caller);
            if exported.draft.blocks.is_empty() {
                let why = exported.draft.remarks.join("\n");
                return Err(CommandError::failed(format_args!(
                    "there is nothing that a profile could say of this node\n{why}"
                )));
            }
            ui.text(&exported.draft.to_string())?;
            for note in exported.notes {
                ui.note(&note);
            }
        }
    }
    Ok(ExitStatus::Done)
}
