//! `mig-mps slurm prolog`

use std::path::PathBuf;

use clap::Args;

use super::super::recorded::Recorded;
use super::super::{Context, verify};
use super::cure::heal;
use super::feature;
use super::numbering::devices_of_job;
use super::variable::variable;
use crate::client::{ClientLimits, Slot, ready};
use crate::error::{CommandError, Context as _, ExitStatus, Result};
use crate::host::printable;
use crate::integrate::SlurmJob;
use crate::node::{Detail, observe};
use crate::render::print;

/// Prepare the devices of a job that begins: for slurm.conf's Prolog
///
/// Checks that each device of the job takes programs of its user, by becoming a client as that user. Heals a device
/// whose daemon died, or that hangs without clients. If a device is still not ready the job is not started, and Slurm
/// drains the node. A job without GPUs costs nothing.
#[derive(Args, Debug)]
pub(super) struct PrologArgs {
    /// First apply DIR/NAME.toml, where NAME is a feature that the job asks for
    ///
    /// Only if no other job is on the node, and if the profile disrupts nobody. A job with GPUs keeps the geometry.
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = feature::DIRECTORY)]
    profile_from_feature: Option<PathBuf>,
}

pub(super) fn run(args: &PrologArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let job = SlurmJob::read(variable).map_err(CommandError::from);
    let prepared =
        job.and_then(|job| prepare(args, context, &job).context(format_args!("job {}", job.id)));
    if let Err(error) = &prepared {
        // Into slurmd's log, which has the standard output of a prolog that fails.
        print(&format!("mig-mps: {}\n", printable(&error.to_string())))?;
    }
    prepared.map(|()| ExitStatus::Done)
}

fn prepare(args: &PrologArgs, context: &Context<'_>, job: &SlurmJob) -> Result<()> {
    if let Some(directory) = &args.profile_from_feature {
        feature::apply(context, job, directory)?;
    }
    if job.gpus.is_empty() {
        return Ok(());
    }
    let environment = context.environment;
    verify::prepare(environment)?;
    let node = observe(environment, Detail::Geometry)?;
    let names = devices_of_job(environment, &node, job)?;
    let unwell = heal(context, &names, &|node, served| {
        let variables = Recorded::of(served).variables(environment, &ClientLimits::default());
        let name = &served.record.name;
        let user = |_: &_, _: &_| job.user;
        ready(
            environment,
            node,
            name,
            &variables.ok()?,
            Slot::NotNeeded,
            user,
        )
        .err()
    })?;
    match unwell.into_iter().next() {
        None => Ok(()),
        Some(first) => Err(first.cause.into()),
    }
}
