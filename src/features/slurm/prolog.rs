//! `mig-mps slurm prolog` and `mig-mps slurm task-prolog`

use super::assigned::devices_of_job;
use super::health::nonempty_variable;
use super::job::SlurmJob;
use crate::client::{ClientOptions, NotReady, another_device};
use crate::commands::env::{check_utf8, client_variables, slurm_lines};
use crate::commands::{Context, verify};
use crate::error::{CommandError, ErrorContext as _, Result, command_error};
use crate::failure::ExitStatus;
use crate::host::to_printable;
use crate::node::{Detail, observe, observe_records};
use crate::render::print;
use crate::shared::LocalRank;
use crate::shared::jobs::heal_devices;

/// Prepares the devices of a job that begins.
pub(super) fn run(context: &Context<'_>) -> Result<ExitStatus> {
    let job = SlurmJob::from_variables(nonempty_variable).map_err(CommandError::from);
    let prepared =
        job.and_then(|job| prepare_devices(context, &job).context(format_args!("job {}", job.id)));
    if let Err(error) = &prepared {
        // Into slurmd's log, which has the standard output of a prolog that fails.
        print(&format!("mig-mps: {}\n", to_printable(&error.to_string())))?;
    }
    prepared.map(|()| ExitStatus::Done)
}

fn prepare_devices(context: &Context<'_>, job: &SlurmJob) -> Result<()> {
    if job.gpus.is_empty() {
        return Ok(());
    }
    let environment = context.environment;
    verify::prepare_check(environment)?;
    let node = observe(environment, Detail::GEOMETRY)?;
    let names = devices_of_job(environment, &node, job)?;
    let not_ready = heal_devices(context, &names, Some(job.user))?;
    let Some((name, cause)) = not_ready.into_iter().next() else {
        return Ok(());
    };
    let other = free_device(context, &name, &cause, &names, job);
    let mut error = CommandError::from(cause);
    if let Some(other) = other {
        let what = format!("{error}; device {other} is free");
        error.error = anyhow::Error::msg(what);
    }
    Err(error)
}

/// Returns a free device in place of one that is closed to new programs. The devices of the job are not free.
fn free_device(
    context: &Context<'_>,
    name: &str,
    cause: &NotReady,
    names: &[String],
    job: &SlurmJob,
) -> Option<String> {
    if !cause.is_closing() {
        return None;
    }
    let mut node = observe_records(context.environment).ok()?;
    let refused = node.served_named(name)?.record.clone();
    node.devices.retain(|device| !names.contains(&device.name));
    another_device(context.environment, &node, &refused, job.user)
}

/// Gives a task the environment of its device.
pub(super) fn run_for_task(context: &Context<'_>) -> Result<ExitStatus> {
    let job = SlurmJob::of_task(nonempty_variable)?;
    if job.gpus.is_empty() {
        return Ok(ExitStatus::Done);
    }
    let environment = context.environment;
    let node = observe(environment, Detail::GEOMETRY)?;
    let names = devices_of_job(environment, &node, &job)?;
    let rank = nonempty_variable("SLURM_LOCALID").and_then(|rank| rank.parse::<usize>().ok());
    let name = &names[rank.unwrap_or(0) % names.len()];
    let served = node.served_named(name).ok_or_else(|| {
        command_error(format_args!("no daemon serves device {name} any more"))
            .with_hint("run `mig-mps heal` to start daemons that have died")
    })?;
    // The job's own limit holds; one that cannot be read must not keep its tasks from starting.
    let limits = ClientOptions::default()
        .with_caller_limits(&served.record)
        .unwrap_or_default();
    let gpus = served.record.gpu_positions();
    let variables = client_variables(served, environment, &limits, &gpus)?;
    check_utf8(&variables)?;
    print(&slurm_lines(&variables))?;
    if let Some(line) = unused_devices(name, names.len()) {
        print(&format!("print mig-mps: {line}\n"))?;
    }
    Ok(ExitStatus::Done)
}

/// Returns a line for the first task on a node whose tasks are fewer than the devices that they have: each gets one.
fn unused_devices(name: &str, devices: usize) -> Option<String> {
    let of_slurm = |name: &str| {
        if name.starts_with("SLURM_") {
            nonempty_variable(name)
        } else {
            None
        }
    };
    let tasks = LocalRank::from_environment(of_slurm)
        .ok()?
        .ranks_if_first()
        .filter(|tasks| *tasks < devices)?;
    Some(match tasks {
        1 => format!(
            "this task gets device {name}, 1 of {devices} devices of the job here, because mig-mps gives each task \
             one device; start {devices} tasks to use all devices"
        ),
        _ => format!(
            "these {tasks} tasks get one device each, of {devices} devices of the job here; start {devices} tasks to \
             use all devices"
        ),
    })
}
