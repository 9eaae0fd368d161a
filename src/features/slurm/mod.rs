//! `mig-mps slurm`
//!
//! Slurm: its configuration of generic resources (GRES), and the variables that it gives to prologs and tasks.
//!
//! All of it was tried with Slurm 22.05.8, and most with 24.11.5. Slurm numbers the GPUs of a node by their place in its
//! own list: gres.conf's entries, ordered by the types in the `Gres=` of the node's line in slurm.conf.

mod check;
mod conf;
mod epilog;
mod health;
mod host_list;
mod install;
mod job;
mod joint;
mod lines;
mod numbering;
mod prolog;
mod shell;
mod site_scripts;

use clap::{Args, Subcommand};

use crate::commands::Context;
use crate::error::Result;
use crate::failure::ExitStatus;

pub use conf::{Gres, GresConf, SlurmFiles, gres_of_node, numbered};
pub use job::SlurmJob;

/// Give devices to Slurm jobs
///
/// Prints Slurm's configuration of the devices, and is called by Slurm when a job begins and ends. Slurm takes no
/// arguments for its prologs: `slurm install` writes scripts without.
#[derive(Args, Debug)]
pub struct SlurmArgs {
    #[command(subcommand)]
    command: SlurmCommand,
}

#[derive(Debug, Subcommand)]
enum SlurmCommand {
    Install(install::InstallArgs),
    Gres(numbering::GresArgs),
    /// Prepare the devices of a job that begins: for slurm.conf's Prolog
    ///
    /// Checks that each device of the job takes programs of its user, by becoming a client as that user. Heals a device
    /// whose daemon died, or that hangs without clients. If a device is still not ready the job is not started, and Slurm
    /// drains the node. A job without GPUs costs nothing.
    Prolog,
    /// Give a task the environment of its device: for Slurm's task prolog
    ///
    /// Prints the lines by which Slurm sets variables: the pipe directory of the step's device, and the device's UUID. With
    /// several devices each task gets one by its rank on the node, in turn.
    /// If the device cannot be found out, the task is not started.
    TaskProlog,
    /// Clean up after a job: for slurm.conf's Epilog
    ///
    /// Ends the programs that the job has left on devices, and names them. A process is the job's by its control group, or,
    /// where Slurm makes none, by its user and the job's id in its environment. Other jobs' programs stay.
    Epilog,
    Health(health::HealthArgs),
}

/// Runs the part of the integration that is named.
pub fn run(args: &SlurmArgs, context: &Context<'_>) -> Result<ExitStatus> {
    match &args.command {
        SlurmCommand::Install(args) => install::run(args, context),
        SlurmCommand::Gres(args) => numbering::run(args, context),
        SlurmCommand::Prolog => prolog::run(context),
        SlurmCommand::TaskProlog => prolog::run_for_task(context),
        SlurmCommand::Epilog => epilog::run(context),
        SlurmCommand::Health(args) => health::run(args, context),
    }
}
