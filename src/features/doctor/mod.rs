//! `mig-mps doctor`
//!
//! Checks of the node: why does MIG or MPS not work here?
//!
//! Each file has the checks of one subject as a table. A check judges an [`Examined`] node and returns what it has found.
//! Problems that `status` reports are checks too, by the same ids.

mod check;
mod daemons;
mod directories;
mod driver;
pub mod explain;
mod gpus;
mod machine;
mod report;
mod surroundings;

use clap::Args;

use crate::commands::Context;
use crate::commands::args::DeviceArgs;
use crate::error::Result;
use crate::failure::ExitStatus;
use crate::node::{Detail, Severity, observe};
use crate::render::print_json;

use check::{Examined, diagnose_all};

pub use report::DoctorDocument;

/// Find out why MIG or MPS does not work here
///
/// Checks driver, GPUs, daemons, directories and surroundings: each check has an id, a verdict, what was seen, why it
/// matters, and a command to paste. A check is unknown where the caller may not see enough: root sees most. Exits with 3
/// if a check fails. Changes nothing.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    #[command(flatten)]
    devices: DeviceArgs,
    /// Also show the checks where all is well, and what was seen
    #[arg(long, short)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The same as `mig-mps explain`, which this was before 0.3
    #[arg(long, hide = true, value_name = "ID", conflicts_with_all = ["words", "gpus", "all", "json"])]
    explain: Option<String>,
}

/// Examines the node.
pub fn run(args: &DoctorArgs, context: &Context<'_>) -> Result<ExitStatus> {
    if let Some(word) = &args.explain {
        return explain::print_explanations(std::slice::from_ref(word));
    }
    let environment = context.environment;
    let node = observe(environment, Detail::DOCTOR)?;
    let devices = args.devices.resolve_names(&node)?;
    let all = diagnose_all(&Examined::new(environment, &node, &devices));
    if args.json {
        print_json(&DoctorDocument::from_diagnoses(&all))?;
    } else {
        report::print_report(&all, args.all, environment.is_root())?;
    }
    let fails = all.iter().any(|one| one.worst_severity() == Severity::Fail);
    Ok(if fails {
        ExitStatus::Drift
    } else {
        ExitStatus::Done
    })
}
