//! `mig-mps slurm prolog --profile-from-feature`: a job's feature names the profile of an idle node.

use std::path::{Path, PathBuf};

use super::super::change::Change;
use super::super::profile_source::ProfileSource;
use super::super::{Context, accounts, detail_for, up};
use super::cure::CONSENT;
use super::files::node_name;
use crate::error::{CommandError, ExitStatus, Result};
use crate::integrate::SlurmJob;
use crate::plan::{self, Obstacle, Plan, Refusal};
use crate::profile::Profile;

/// The directory of the profiles.
pub(super) const DIRECTORY: &str = "/etc/mig-mps/profiles";

/// Applies the profile that the job's feature names, if there is one.
pub(super) fn apply(context: &Context<'_>, job: &SlurmJob, directory: &Path) -> Result<()> {
    let Some(path) = profile_of(job, directory)? else {
        return Ok(());
    };
    let environment = context.environment;
    let profile = ProfileSource::File(path).load()?;
    accounts::check(&profile, environment, environment.caller)?;
    let directories = environment.directories()?;
    accounts::check_ways(&profile, &directories)?;
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
    let is_sign = |sign: char| sign.is_ascii_alphanumeric() || "-_".contains(sign);
    let names = job.constraints.split(|sign| !is_sign(sign));
    let paths = names.filter(|name| !name.is_empty());
    let mut paths: Vec<PathBuf> = paths
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
        .with_hint("submit the job with a single one of these features")),
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
    let shown = profile.source.path().display();
    let refused = |what: String, hint: &str| {
        Refusal::InTheWay(Obstacle {
            what: format!("cannot apply {shown}: {what}"),
            hint: hint.to_owned(),
        })
    };
    if !job.gpus.is_empty() && plan.changes_geometry() {
        return Err(refused(
            "it changes the geometry, and Slurm has chosen the job's GPUs by gres.conf".to_owned(),
            "such a job asks for no GPUs",
        ));
    }
    let node =
        node_name().map_err(|error| refused(error.to_string(), "slurmd sets SLURMD_NODENAME"))?;
    let jobs = context
        .environment
        .slurm()
        .map_err(|error| error.to_string());
    let jobs = jobs.and_then(|slurm| slurm.jobs_on(&node).map_err(|error| error.to_string()));
    let jobs = jobs.map_err(|error| {
        let what = format!("which jobs are on the node is not known: {error}");
        refused(what, "mig-mps asks Slurm with squeue")
    })?;
    match jobs.into_iter().find(|id| *id != job.id) {
        None => Ok(()),
        Some(other) => Err(refused(
            format!("job {other} is on the node, too"),
            "the job can begin when no other is there",
        )),
    }
}
