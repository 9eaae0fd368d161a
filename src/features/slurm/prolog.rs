//! `mig-mps slurm prolog`
//!
//! With `--profile-from-feature` a job's feature names the profile of an idle node.

use std::path::{Path, PathBuf};

use clap::Args;

use super::conf::node_name;
use super::health::{CONSENT, heal_devices, variable};
use super::job::SlurmJob;
use super::numbering::devices_of_job;
use crate::client::{ClientLimits, ClientSlot, NotReady, Variables, ready};
use crate::commands::args::ProfileSource;
use crate::commands::change::Change;
use crate::commands::{Context, detail_for, up, verify};
use crate::error::{CommandError, Context as _, Result};
use crate::failure::ExitStatus;
use crate::host::{Environment, printable};
use crate::node::{Detail, Node, Served, observe};
use crate::plan::{self, Obstacle, Plan, Refusal};
use crate::profile::Profile;
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
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = DIRECTORY)]
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
        apply(context, job, directory)?;
    }
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

/// The directory of the profiles.
pub(super) const DIRECTORY: &str = "/etc/mig-mps/profiles";

/// Applies the profile that the job's feature names, if there is one.
pub(super) fn apply(context: &Context<'_>, job: &SlurmJob, directory: &Path) -> Result<()> {
    let Some(path) = profile_of(job, directory)? else {
        return Ok(());
    };
    let environment = context.environment;
    let profile = ProfileSource::File(path).load()?;
    up::refuse_unknown_accounts(&profile, environment, environment.caller)?;
    let directories = environment.directories()?;
    up::check_ways(&profile, &directories)?;
    let outcome = Change {
        detail: detail_for(&profile),
        verify: true,
        is_unattended: true,
        ..Change::new(context, &directories, &CONSENT, &|node, run_dir| {
            let plan = plan::up(node, &profile, run_dir, environment.caller)?;
            check(context, job, &profile, &plan)?;
            Ok(plan)
        })
    }
    .run()?;
    match outcome {
        Some(outcome) if !outcome.is_unchanged => match outcome.failed {
            Some(failed) => Err(failed.into()),
            None => up::record(&profile, &directories, &outcome.node),
        },
        _ => Ok(()),
    }
}

/// Returns the profile that a feature names; `None` if no feature of the job does.
fn profile_of(job: &SlurmJob, directory: &Path) -> Result<Option<PathBuf>> {
    // `a&b`, `a|b`, `[a*2&b*4]`: a user writes that, so only plain names are used in a path.
    let mut paths: Vec<PathBuf> = job
        .constraints
        .split(|sign: char| !(sign.is_ascii_alphanumeric() || "-_".contains(sign)))
        .filter(|name| !name.is_empty())
        .map(|name| directory.join(format!("{name}.toml")))
        .filter(|path| path.is_file())
        .collect();
    paths.sort();
    paths.dedup();
    match paths.as_slice() {
        [] => Ok(None),
        [_] => Ok(paths.pop()),
        [first, second, ..] => Err(CommandError::new(
            ExitStatus::Refused,
            format_args!(
                "the job's features name several profiles: {} and {}",
                first.display(),
                second.display()
            ),
        )
        .hint("submit the job with a single one of these features")),
    }
}

/// Refuses a change that another job, or Slurm itself, would notice.
fn check(
    context: &Context<'_>,
    job: &SlurmJob,
    profile: &Profile,
    plan: &Plan,
) -> Result<(), Refusal> {
    if plan.is_empty() {
        return Ok(());
    }
    if !job.gpus.is_empty() && plan.changes_geometry() {
        return Err(refused(
            profile,
            "it changes the geometry, and Slurm has chosen the job's GPUs by gres.conf",
            "such a job asks for no GPUs",
        ));
    }
    let node = node_name()
        .map_err(|error| refused(profile, &error.to_string(), "slurmd sets SLURMD_NODENAME"))?;
    let jobs = context
        .environment
        .slurm()
        .map_err(|error| error.to_string())
        .and_then(|slurm| slurm.jobs_on(&node).map_err(|error| error.to_string()))
        .map_err(|error| {
            let what = format!("which jobs are on the node is not known: {error}");
            refused(profile, &what, "mig-mps asks Slurm with squeue")
        })?;
    match jobs.into_iter().find(|id| *id != job.id) {
        None => Ok(()),
        Some(other) => Err(refused(
            profile,
            &format!("job {other} is on the node, too"),
            "the job can begin when no other is there",
        )),
    }
}

fn refused(profile: &Profile, what: &str, hint: &str) -> Refusal {
    let shown = profile.source.path().display();
    Refusal::InTheWay(Obstacle {
        what: format!("cannot apply {shown}: {what}"),
        hint: hint.to_owned(),
    })
}
