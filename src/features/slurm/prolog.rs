//! `mig-mps slurm prolog`

use clap::Args;

use super::health::{heal_devices, variable};
use super::job::SlurmJob;
use super::numbering::devices_of_job;
use crate::client::{ClientLimits, ClientSlot, NotReady, Variables, ready};
use crate::commands::{Context, verify};
use crate::error::{CommandError, Context as _, Result};
use crate::failure::ExitStatus;
use crate::host::{Environment, printable};
use crate::node::{Detail, Node, Served, observe};
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
    let not_ready = heal_devices(context, &names, &|node, served| {
        check_device(environment, job, node, served)
    })?;
    match not_ready.into_iter().next() {
        None => Ok(()),
        Some(first) => Err(first.cause.into()),
    }
}

/// Becomes a client of a device as the job's user. Returns the reason if that fails.
fn check_device(
    environment: &Environment,
    job: &SlurmJob,
    node: &Node,
    served: &Served,
) -> Option<NotReady> {
    let record = &served.record;
    let logs = environment.logs_of(served.run_dir.path());
    let variables = Variables::of(record, &served.run_dir, logs, &ClientLimits::default());
    ready(
        environment,
        node,
        &record.name,
        &variables,
        ClientSlot::NotNeeded,
        |_, _| job.user,
    )
    .err()
}
