//! `mig-mps slurm`
//!
//! Slurm: its configuration of generic resources (GRES), and the variables that it gives to prologs and tasks.
//!
//! All of it was tried with Slurm 22.05.8, and most with 24.11.5. Slurm numbers the GPUs of a node by their place in its
//! own list: gres.conf's entries, ordered by the types in the `Gres=` of the node's line in slurm.conf.

mod assigned;
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
use crate::render::examples;

pub use conf::{Gres, GresConf, SlurmFiles, gres_of_node, numbered};
pub use job::SlurmJob;

/// Give devices to Slurm jobs
///
/// Prints the Slurm configuration for the devices of this node, and implements the prologs, the epilog and the health
/// check that Slurm runs. `slurm install` writes a script for each, because Slurm passes no arguments to a prolog.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sudo mig-mps slurm install", "Write the scripts, and print what to configure"),
    ("mig-mps slurm gres --check", "Compare gres.conf and slurm.conf with the node"),
]))]
pub struct SlurmArgs {
    #[command(subcommand)]
    command: SlurmCommand,
}

#[derive(Debug, Subcommand)]
enum SlurmCommand {
    Install(install::InstallArgs),
    Gres(numbering::GresArgs),
    /// Prepare the devices of a job (called by Slurm)
    ///
    /// Becomes a client of each device of the job, as the user of the job. Heals a device if its daemon died, or hangs
    /// without clients. If a device does not accept the user's programs, the job does not start, and Slurm drains the node.
    #[command(after_help = examples(&[
        ("exec mig-mps slurm prolog", "In the script for Prolog="),
    ]))]
    Prolog,
    /// Print the environment of a task (called by Slurm)
    ///
    /// Prints the lines with which Slurm sets the pipe directory and the UUID of the task's device. If a job step has
    /// several devices, each task gets one of them by its rank on the node. If the device cannot be determined, the task
    /// does not start.
    #[command(after_help = examples(&[
        ("exec mig-mps slurm task-prolog", "In the script for TaskProlog="),
    ]))]
    TaskProlog,
    /// Clean up after a job (called by Slurm)
    ///
    /// Ends the programs that the job left on devices, and lists them. The control group of a process determines its job.
    /// If Slurm creates no control groups, the user and the job ID in the environment determine it.
    #[command(after_help = examples(&[
        ("exec mig-mps slurm epilog", "In the script for Epilog="),
    ]))]
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
