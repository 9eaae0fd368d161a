//! `mig-mps slurm epilog`

use super::health::nonempty_variable;
use super::job::SlurmJob;
use crate::commands::Context;
use crate::error::Result;
use crate::failure::ExitStatus;
use crate::shared::jobs::end_leftovers;

/// Cleans up after a job.
pub(super) fn run(context: &Context<'_>) -> Result<ExitStatus> {
    let job = SlurmJob::from_variables(nonempty_variable)?;
    if job.gpus.is_empty() {
        return Ok(ExitStatus::Done);
    }
    end_leftovers(context, &job.id.to_string(), |process| {
        process.is_of_slurm_job(job.id, job.user)
    })?;
    Ok(ExitStatus::Done)
}
