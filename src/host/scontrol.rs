//! Slurm's `scontrol` and `squeue`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use super::system_command::{printed, system_command};
use super::{RunError, run};

/// The time limit of one request to Slurm's controller.
const LIMIT: Duration = Duration::from_secs(20);

/// Slurm's controller, through its programs.
#[derive(Clone, Debug)]
pub struct Slurm {
    scontrol: PathBuf,
}

/// A request to Slurm's controller that failed.
#[derive(Debug, Error)]
pub enum SlurmError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("{program} failed: {said}")]
    Failed { program: String, said: String },
}

/// The state of a node in Slurm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmNode {
    /// True if no job is started there.
    pub is_drained: bool,
    /// The reason for that, without the user and the time.
    pub reason: Option<String>,
}

impl Slurm {
    pub fn at(scontrol: PathBuf) -> Self {
        Self { scontrol }
    }

    /// Returns the state of a node.
    pub fn node(&self, name: &str) -> Result<SlurmNode, SlurmError> {
        let text = ask(&self.scontrol, &["show", "node", name])?;
        Ok(SlurmNode::parse(&text))
    }

    /// Keeps jobs from being started on a node; those that run there go on.
    pub fn drain(&self, node: &str, reason: &str) -> Result<(), SlurmError> {
        let node = format!("NodeName={node}");
        let reason = format!("Reason={reason}");
        ask(&self.scontrol, &["update", &node, "State=DRAIN", &reason]).map(drop)
    }

    /// Lets jobs be started on a node again.
    pub fn resume(&self, node: &str) -> Result<(), SlurmError> {
        let node = format!("NodeName={node}");
        ask(&self.scontrol, &["update", &node, "State=RESUME"]).map(drop)
    }

    /// Returns the ids of the jobs on a node, those that begin or end included.
    pub fn jobs_on(&self, node: &str) -> Result<Vec<u32>, SlurmError> {
        let squeue = self.scontrol.with_file_name("squeue");
        let states = "--states=CF,R,S,CG";
        let node = format!("--nodelist={node}");
        let text = ask(&squeue, &["--noheader", &node, states, "--format=%A"])?;
        let ids = text.split_whitespace().map(|id| {
            id.parse().map_err(|_| SlurmError::Failed {
                program: squeue.display().to_string(),
                said: format!("{id:?} is not a job"),
            })
        });
        ids.collect()
    }
}

fn ask(program: &Path, words: &[&str]) -> Result<String, SlurmError> {
    let mut command = system_command(program);
    command.args(words);
    for kept in ["SLURM_CONF", "SLURMD_NODENAME"] {
        if let Some(value) = std::env::var_os(kept) {
            command.env(kept, value);
        }
    }
    let output = run(&command, "", LIMIT)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(SlurmError::Failed {
        program: program.display().to_string(),
        said: printed(&output),
    })
}

impl SlurmNode {
    fn parse(text: &str) -> Self {
        let mut lines = text.lines().map(str::trim_start);
        let state = lines.clone().find_map(|line| line.strip_prefix("State="));
        let state = state.and_then(|rest| rest.split_whitespace().next());
        let reason = lines.find_map(|line| line.strip_prefix("Reason="));
        let reason = reason.map(|reason| match reason.rsplit_once(" [") {
            Some((reason, _)) => reason.to_owned(),
            None => reason.to_owned(),
        });
        Self {
            is_drained: state.is_some_and(|state| state.split('+').any(|word| word == "DRAIN")),
            reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slurm 22.05.8.
    const SHOWN: &str = "NodeName=n1 Arch=x86_64 CoresPerSocket=1 
   State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=all 
   Reason=mig-mps: 0.4 hangs [root@2026-11-23T18:01:23]
";

    #[test]
    fn a_drained_node_has_a_reason() {
        let node = SlurmNode::parse(SHOWN);
        assert!(node.is_drained);
        assert_eq!(node.reason.as_deref(), Some("mig-mps: 0.4 hangs"));
    }

    #[test]
    fn a_node_that_takes_jobs_has_none() {
        let node = SlurmNode::parse("NodeName=n1\n   State=MIXED ThreadsPerCore=1\n");
        assert_eq!(
            node,
            SlurmNode {
                is_drained: false,
                reason: None
            }
        );
    }
}
