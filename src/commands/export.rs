//! `mig-mps export`

use clap::{Args, ValueEnum};

use super::Context;
use crate::convert::{export, to_mig_parted};
use crate::error::{Result, failed};
use crate::failure::ExitStatus;
use crate::node::{Detail, observe};
use crate::render::{note, print};
use crate::state::RunDir;

/// Print this node as a profile
///
/// Prints the geometry, the names and the MPS settings; `up` with that profile does nothing here.
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Toml)]
    format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// A profile of mig-mps: geometry, names and MPS settings
    Toml,
    /// A configuration of mig-parted: geometry alone
    MigParted,
}

/// Prints the node as a profile.
pub fn run(args: &ExportArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let environment = context.environment;
    let node = observe(environment, Detail::Offers)?;
    match args.format {
        Format::MigParted => {
            let (text, lost) = to_mig_parted(&node);
            print(&text)?;
            for lost in lost {
                note(&format!("{lost}."));
            }
        }
        Format::Toml => {
            // A caller without a run directory has no daemons either.
            let run = environment.directories().map_or_else(
                |_| environment.roots_run_dir(),
                |directories| directories.run,
            );
            let exported = export(&node, &RunDir::at(&run), environment.caller);
            if exported.draft.blocks.is_empty() {
                let why = exported.draft.remarks.join("\n");
                return Err(failed(format_args!(
                    "there is nothing that a profile could say of this node\n{why}"
                ))
                .hint("mig-mps init writes a first profile"));
            }
            print(&exported.draft.to_string())?;
            for remark in exported.notes {
                note(&remark);
            }
        }
    }
    Ok(ExitStatus::Done)
}
