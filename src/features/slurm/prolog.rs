//! `mig-mps slurm prolog`

use clap::Args;

use super::health::{heal_devices, variable};
use super::job::SlurmJob;
use super::numbering::devices_of_job;
use crate::commands::{Context, verify};
use crate::error::{CommandError, Context as _, Result};
use crate::failure::ExitStatus;
use crate::host::printable;
use crate::node::{Detail, observe};
use crate::render::print;

/// Prepare the devices of a job that begins: for slurm.conf's Prolog
///
/// Checks that each device of the job takes programs of its user, by becoming a client as that user. Heals a device
/// whose daemon died, or that hangs without clients. If a device is still not ready the job is not started, and Slurm
/// drains the node. A job without GPUs costs nothing.
#[derive(Args, Debug)]
pub(super) struct PrologArgs {}

pub(super) fn run(_args: &PrologArgs, context: &Context<'_>) -> Result<ExitStatus> {
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
        Some(first) => Err(first.cause.into()),
    }
}
