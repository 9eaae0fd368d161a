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
use crate::render::{examples_and_statuses, print_json};

use check::{Examined, diagnose_all};

pub use report::DoctorDocument;

/// Find out why MIG or MPS does not work
///
/// Checks the driver, the GPUs, the daemons, their directories and the rest of the system. For each failed check, shows
/// what was observed, why it matters, and what to do. As root, the command can check the most. Changes nothing.
#[derive(Args, Debug)]
#[command(after_help = examples_and_statuses(&[
    ("sudo mig-mps doctor", "Check the node"),
    ("sudo mig-mps doctor 0.0 --all", "Show all checks of device 0.0"),
], &[("3", "a check fails")]))]
pub struct DoctorArgs {
    #[command(flatten)]
    devices: DeviceArgs,
    /// Also show the checks that passed, with the observed values
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
