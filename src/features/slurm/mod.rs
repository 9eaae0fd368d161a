//! `mig-mps slurm`
//!
//! Slurm: its configuration of generic resources (GRES), and the variables that it gives to prologs and tasks.
//!
//! All of it was tried with Slurm 22.05.8. Slurm numbers the GPUs of a node by their place in its own list: gres.conf's
//! entries, ordered by the types in the `Gres=` of the node's line in slurm.conf.

mod conf;
mod epilog;
mod health;
mod job;
mod numbering;
mod prolog;
mod task_prolog;

use clap::{Args, Subcommand};

use crate::commands::Context;
use crate::error::Result;
use crate::failure::ExitStatus;

pub use conf::{GresConf, gres_of_node};
pub use job::SlurmJob;

/// Give devices to Slurm jobs
///
/// Prints Slurm's configuration of the devices, and is called by Slurm when a job begins and ends. Slurm takes no
/// arguments for its prologs: name scripts of two lines, as the manual shows.
#[derive(Args, Debug)]
pub struct SlurmArgs {
    #[command(subcommand)]
    command: SlurmCommand,
}

#[derive(Debug, Subcommand)]
enum SlurmCommand {
    Gres(numbering::GresArgs),
    Prolog(prolog::PrologArgs),
    TaskProlog(task_prolog::TaskPrologArgs),
    Epilog(epilog::EpilogArgs),
    Health(health::HealthArgs),
}

/// Runs the part of the integration that is named.
pub fn run(args: &SlurmArgs, context: &Context<'_>) -> Result<ExitStatus> {
    match &args.command {
        SlurmCommand::Gres(args) => numbering::run(args, context),
        SlurmCommand::Prolog(args) => prolog::run(args, context),
        SlurmCommand::TaskProlog(args) => task_prolog::run(args, context),
        SlurmCommand::Epilog(args) => epilog::run(args, context),
        SlurmCommand::Health(args) => health::run(args, context),
    }
}
