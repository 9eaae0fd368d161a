//! `mig-mps slurm epilog`

use clap::Args;

use super::super::Context;
use super::super::change::Change;
use super::cure::CONSENT;
use super::leftovers::{end, of_job};
use super::numbering::devices_of_job;
use super::variable::variable;
use crate::error::{CommandError, ExitStatus, Result};
use crate::integrate::SlurmJob;
use crate::node::{Detail, Node, Served, observe};
use crate::plan;
use crate::render::{note, print};

/// Clean up after a job: for slurm.conf's Epilog
///
/// Ends the programs that the job has left on devices, and names them. A process is the job's by its control group, or,
/// where Slurm makes none, by its user and the job's id in its environment. Other jobs' programs stay. Settings that the
/// job's user has changed in the daemons of its devices are set back.
#[derive(Args, Debug)]
pub(super) struct EpilogArgs {}

pub(super) fn run(_args: &EpilogArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let job = SlurmJob::read(variable)?;
    if job.gpus.is_empty() {
        return Ok(ExitStatus::Done);
    }
    let node = observe(context.environment, Detail::Status)?;
    let leftovers = of_job(context, &node, &job);
    for one in &leftovers {
        let (id, device, pid) = (job.id, &one.device, one.pid);
        let command = &one.command;
        print(&format!(
            "mig-mps: job {id} has left pid {pid} ({command}) on {device}: it is ended\n"
        ))?;
    }
    let stay = end(context, leftovers);
    // A node is not taken out of service for a setting.
    if let Err(error) = set_back(context, &job) {
        note(&format!("settings are not checked: {error}"));
    }
    match stay.first() {
        None => Ok(ExitStatus::Done),
        Some(one) => {
            let (id, device, pid, command) = (job.id, &one.device, one.pid, &one.command);
            let what =
                format!("job {id}: pid {pid} ({command}) is on {device}, and cannot be ended now");
            print(&format!("mig-mps: {what}\n"))?;
            let error = CommandError::failed(what);
            Err(error
                .with_hint("the node needs a reboot if the process stays: search the kernel log"))
        }
    }
}

/// Sets back what the job's user has changed in the daemons of its devices.
fn set_back(context: &Context<'_>, job: &SlurmJob) -> Result<()> {
    let environment = context.environment;
    let node = observe(environment, Detail::Geometry)?;
    let mut names = devices_of_job(environment, &node, job)?;
    names.retain(|name| can_be_set_by_users(&node, name));
    if names.is_empty() {
        return Ok(());
    }
    let directories = environment.directories()?;
    let outcome = Change {
        detail: Detail::Settings,
        is_unattended: true,
        ..Change::new(context, &directories, &CONSENT, &|node, run_dir| {
            plan::set_back(node, run_dir, &names)
        })
    }
    .run()?;
    let Some(outcome) = outcome else {
        return Ok(());
    };
    for step in outcome.plan.steps() {
        print(&format!(
            "mig-mps: {}: set back: {}\n",
            step.action, step.because
        ))?;
    }
    match outcome.failed {
        Some(failed) => Err(failed.into()),
        None => Ok(()),
    }
}

/// True for a daemon that runs as a user, who may change its settings. Those of other daemons are root's.
fn can_be_set_by_users(node: &Node, name: &str) -> bool {
    node.served_as(name).is_some_and(Served::is_a_users)
}
