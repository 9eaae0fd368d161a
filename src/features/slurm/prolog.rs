//! `mig-mps slurm prolog` and `mig-mps slurm task-prolog`

use super::health::{heal_devices, variable};
use super::job::SlurmJob;
use super::numbering::devices_of_job;
use crate::client::ClientOptions;
use crate::commands::env::{refuse_bytes, slurm_lines, variables, variables_over_own};
use crate::commands::{Context, verify};
use crate::error::{CommandError, Context as _, Result, failed};
use crate::failure::ExitStatus;
use crate::host::printable;
use crate::node::{Detail, observe};
use crate::render::print;
use crate::shared::LocalRank;

/// Prepares the devices of a job that begins.
pub(super) fn run(context: &Context<'_>) -> Result<ExitStatus> {
    let job = SlurmJob::read(variable).map_err(CommandError::from);
    let prepared =
        job.and_then(|job| prepare(context, &job).context(format_args!("job {}", job.id)));
    if let Err(error) = &prepared {
        // Into slurmd's log, which has the standard output of a prolog that fails.
        print(&format!("mig-mps: {}\n", printable(&error.to_string())))?;
    }
    prepared.map(|()| ExitStatus::Done)
}

fn prepare(context: &Context<'_>, job: &SlurmJob) -> Result<()> {
    if job.gpus.is_empty() {
        return Ok(());
    }
    let environment = context.environment;
    verify::prepare(environment)?;
    let node = observe(environment, Detail::GEOMETRY)?;
    let names = devices_of_job(environment, &node, job)?;
    let not_ready = heal_devices(context, &names, Some(job.user))?;
    match not_ready.into_iter().next() {
        None => Ok(()),
        Some((_, cause)) => Err(cause.into()),
    }
}

/// Gives a task the environment of its device.
pub(super) fn run_for_task(context: &Context<'_>) -> Result<ExitStatus> {
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
    let limits = ClientOptions::default();
    let variables = variables_over_own(served, environment, &limits)
        .or_else(|_| variables(served, environment, &limits))?;
    refuse_bytes(&variables)?;
    print(&slurm_lines(&variables))?;
    if let Some(line) = unused_devices(name, names.len()) {
        print(&format!("print mig-mps: {line}\n"))?;
    }
    Ok(ExitStatus::Done)
}

/// Returns a line for the first task on a node whose tasks are fewer than the devices that they have: each gets one.
fn unused_devices(name: &str, devices: usize) -> Option<String> {
    let tasks = LocalRank::of(|name| variable(name).filter(|_| name.starts_with("SLURM_")));
    let tasks = tasks
        .ok()?
        .ranks_if_first()
        .filter(|tasks| *tasks < devices)?;
    Some(match tasks {
        1 => format!(
            "this task gets {name}, 1 of {devices} devices of the job here, because an MPS client has one device: start \
             {devices} tasks to use all"
        ),
        _ => format!(
            "these {tasks} tasks get one device each, of {devices} devices of the job here: start {devices} tasks to use all"
        ),
    })
}
