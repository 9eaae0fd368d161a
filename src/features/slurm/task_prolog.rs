//! `mig-mps slurm task-prolog`

use clap::Args;

use super::health::variable;
use super::job::SlurmJob;
use super::numbering::devices_of_job;
use crate::client::ClientLimits;
use crate::commands::Context;
use crate::commands::env::{refuse_bytes, slurm_lines, variables, variables_over_own};
use crate::error::{Result, failed};
use crate::failure::ExitStatus;
use crate::node::{Detail, observe};
use crate::render::print;

/// Give a task the environment of its device: for Slurm's task prolog
///
/// Prints the lines by which Slurm sets variables: the pipe directory of the step's device, and the device's UUID. With
/// several devices each task gets one by its rank on the node, in turn: an MPS client has one device.
/// If the device cannot be found out, the task is not started.
#[derive(Args, Debug)]
pub(super) struct TaskPrologArgs {}

pub(super) fn run(_args: &TaskPrologArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let job = SlurmJob::of_task(variable)?;
    if job.gpus.is_empty() {
        return Ok(ExitStatus::Done);
    }
    let environment = context.environment;
    let node = observe(environment, Detail::GEOMETRY)?;
    let names = devices_of_job(environment, &node, &job)?;
    let rank = variable("SLURM_LOCALID").and_then(|rank| rank.parse::<usize>().ok());
    let name = &names[rank.unwrap_or(0) % names.len()];
    let served = node.served_as(name).ok_or_else(|| {
        failed(format_args!("no daemon serves {name} any more"))
            .hint("mig-mps heal starts daemons that have died")
    })?;
    // The job's own limit holds; one that cannot be read must not keep its tasks from starting.
    let limits = ClientLimits::default();
    let variables = variables_over_own(served, environment, &limits)
        .or_else(|_| variables(served, environment, &limits))?;
    refuse_bytes(&variables)?;
    print(&slurm_lines(&variables))?;
    Ok(ExitStatus::Done)
}
