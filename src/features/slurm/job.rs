//! The job that a prolog, an epilog or a task belongs to.

use std::collections::BTreeSet;

use thiserror::Error;

use crate::failure::{ExitStatus, Failure};
use crate::host::{Uid, shorten_command};

/// A variable that Slurm should have set.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum JobError {
    #[error("{0} is not set; Slurm sets it for prologs and epilogs")]
    Missing(&'static str),
    /// Seen with Slurm 22.05 where a file in gres.conf is no device, and where `MultipleFiles` meets shards.
    #[error(
        "Slurm has given the job {0} GPU without its number: it does not use the files in gres.conf"
    )]
    Unnumbered(String),
    #[error("{name} is {value:?}, which is not a number")]
    Malformed { name: &'static str, value: String },
}

impl Failure for JobError {
    fn status(&self) -> ExitStatus {
        ExitStatus::Usage
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Missing(_) => {
                "configure slurm.conf as in `mig-mps help slurm`, so that Slurm runs the prologs"
            }
            Self::Unnumbered(_) => {
                "run `mig-mps slurm gres --check` to compare gres.conf with the node; with shards, Slurm 22.05 needs \
                 --one-file"
            }
            Self::Malformed { .. } => {
                "check that no job script or prolog changes this variable, which Slurm sets"
            }
        };
        Some(hint.to_owned())
    }
}

/// A job on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmJob {
    pub id: u32,
    pub user: Uid,
    /// The numbers of its GPUs in Slurm's own list.
    pub gpus: Vec<usize>,
    /// The same GPUs in `CUDA_VISIBLE_DEVICES`: a UUID where Slurm has detected it, else a number.
    pub visible: Vec<String>,
}

impl SlurmJob {
    /// Reads the variables of a prolog or epilog, which Slurm sets and no user can.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, JobError> {
        Ok(Self {
            id: parse_number(&variable, "SLURM_JOB_ID")?,
            user: Uid(parse_number(&variable, "SLURM_JOB_UID")?),
            gpus: parse_gpus(&variable, "SLURM_JOB_GPUS")?,
            visible: visible_words(&variable),
        })
    }

    /// Reads the variables of a task: the GPUs are those of its step. A variable that was left from another step, as of
    /// an `sbatch` within one, names GPUs that are not the job's.
    pub fn of_task(variable: impl Fn(&str) -> Option<String>) -> Result<Self, JobError> {
        let mut job = Self::from_variables(&variable)?;
        let step = parse_gpus(&variable, "SLURM_STEP_GPUS")?;
        let of_job: BTreeSet<usize> = job.gpus.iter().copied().collect();
        let is_of_job = of_job.is_empty() || step.iter().all(|gpu| of_job.contains(gpu));
        if is_of_job && !step.is_empty() {
            job.gpus = step;
        }
        let count = variable("SLURM_GPUS_ON_NODE").unwrap_or_default();
        if job.gpus.is_empty() && !matches!(count.as_str(), "" | "0") {
            return Err(JobError::Unnumbered(count));
        }
        Ok(job)
    }
}

fn parse_number(
    variable: &impl Fn(&str) -> Option<String>,
    name: &'static str,
) -> Result<u32, JobError> {
    let value = variable(name).ok_or(JobError::Missing(name))?;
    value
        .parse()
        .map_err(|_| JobError::Malformed { name, value })
}

/// Returns numbers, each once.
fn parse_gpus(
    variable: &impl Fn(&str) -> Option<String>,
    name: &'static str,
) -> Result<Vec<usize>, JobError> {
    let value = variable(name).unwrap_or_default();
    let mut numbers: Vec<usize> = value
        .split(',')
        .filter(|word| !word.is_empty())
        .map(str::parse)
        .collect::<Result<_, _>>()
        .map_err(|_| JobError::Malformed {
            name,
            value: shorten_command(&value).into_owned(),
        })?;
    let mut seen = BTreeSet::new();
    numbers.retain(|number| seen.insert(*number));
    Ok(numbers)
}

fn visible_words(variable: &impl Fn(&str) -> Option<String>) -> Vec<String> {
    let value = variable("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let mut seen = BTreeSet::new();
    value
        .split(',')
        .filter(|word| !word.is_empty() && seen.insert(*word))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The variables that slurmd 22.05.8 gave to a prolog, and more.
    fn job(of: fn(Variables<'_>) -> Result<SlurmJob, JobError>, more: &[(&str, &str)]) -> String {
        let common = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_UID", "1000")];
        let all: Vec<_> = common.iter().chain(more).collect();
        let variable = |name: &str| {
            let found = all.iter().rev().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        match of(&variable) {
            Ok(job) => format!("{:?} {:?}", job.gpus, job.visible),
            Err(error) => error.to_string(),
        }
    }

    type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

    #[test]
    fn a_job_is_read() {
        let read = |more: &[(&str, &str)]| job(|variable| SlurmJob::from_variables(variable), more);
        assert_eq!(read(&[]), "[] []");
        let gpus = [
            ("SLURM_JOB_GPUS", "1,3"),
            ("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b"),
        ];
        assert_eq!(read(&gpus), "[1, 3] [\"MIG-a\", \"MIG-b\"]");
        let again = [
            ("SLURM_JOB_GPUS", "3,1,3"),
            ("CUDA_VISIBLE_DEVICES", "b,a,b"),
        ];
        assert_eq!(read(&again), "[3, 1] [\"b\", \"a\"]");
        assert!(read(&[("SLURM_JOB_GPUS", "all")]).contains("not a number"));
        assert!(read(&[("SLURM_JOB_UID", "alice")]).contains("SLURM_JOB_UID"));
        let nothing = SlurmJob::from_variables(|_| None).unwrap_err();
        assert_eq!(nothing, JobError::Missing("SLURM_JOB_ID"));
    }

    #[test]
    fn a_task_has_the_gpus_of_its_step() {
        let task = |job_gpus, step| {
            let more = [("SLURM_JOB_GPUS", job_gpus), ("SLURM_STEP_GPUS", step)];
            job(|variable| SlurmJob::of_task(variable), &more)
        };
        assert_eq!(task("", "2"), "[2] []");
        assert_eq!(task("1,2", "2"), "[2] []");
        assert_eq!(task("1,2", ""), "[1, 2] []");
        assert_eq!(task("1,2", "5"), "[1, 2] []");
        let unnumbered = job(
            |variable| SlurmJob::of_task(variable),
            &[("SLURM_GPUS_ON_NODE", "1")],
        );
        assert!(unnumbered.contains("without its number"), "{unnumbered}");
    }
}
