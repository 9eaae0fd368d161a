//! Slurm's `scontrol`, and the Slurm job that a process belongs to.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::tool::Tool;
use super::{Process, ToolError, Uid};

/// The time limit of one request to Slurm's controller.
const LIMIT: Duration = Duration::from_secs(20);

/// Slurm's controller, through `scontrol`.
#[derive(Clone, Debug)]
pub struct Slurm(Tool);

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
        Self(Tool::at(scontrol, "scontrol", &[]))
    }

    /// Returns the state of a node.
    pub fn node(&self, name: &str) -> Result<SlurmNode, ToolError> {
        let shown = self.0.run(&["show", "node", name], LIMIT)?;
        Ok(SlurmNode::parse(&shown.stdout))
    }

    /// Keeps jobs from being started on a node; those that run there go on.
    pub fn drain(&self, node: &str, reason: &str) -> Result<(), ToolError> {
        self.update(node, &["State=DRAIN", &format!("Reason={reason}")])
    }

    /// Lets jobs be started on a node again.
    pub fn resume(&self, node: &str) -> Result<(), ToolError> {
        self.update(node, &["State=RESUME"])
    }

    fn update(&self, node: &str, values: &[&str]) -> Result<(), ToolError> {
        let node = format!("NodeName={node}");
        let words = [&["update", &node], values].concat();
        self.0.run(&words, LIMIT).map(drop)
    }
}

impl SlurmNode {
    fn parse(text: &str) -> Self {
        let mut lines = text.lines().map(str::trim_start);
        let state = lines
            .clone()
            .find_map(|line| line.strip_prefix("State="))
            .and_then(|rest| rest.split_whitespace().next());
        let reason = lines
            .find_map(|line| line.strip_prefix("Reason="))
            .map(|reason| match reason.rsplit_once(" [") {
                Some((reason, _)) => reason.to_owned(),
                None => reason.to_owned(),
            });
        Self {
            is_drained: state.is_some_and(|state| state.split('+').any(|word| word == "DRAIN")),
            reason,
        }
    }
}

impl Process {
    /// True if the process belongs to this job of this user.
    ///
    /// Its control group decides, which no user can change. Where Slurm makes none, or the process has left it, the variable
    /// decides with which the process was started. Any user can forge that one, so it counts for processes of the
    /// job's own user alone.
    pub fn is_of_slurm_job(&self, job: u32, user: Uid) -> bool {
        let groups = fs::read_to_string(self.directory.join("cgroup")).unwrap_or_default();
        if let Some(of_group) = job_of(&groups) {
            return of_group == job;
        }
        let variable = self.environment("SLURM_JOB_ID");
        self.owner() == Some(user) && variable.is_some_and(|id| id == job.to_string())
    }
}

/// Returns the job of `/slurm/uid_1000/job_7/step_0`, or of `/system.slice/slurmstepd.scope/job_7/step_0`.
fn job_of(groups: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let path = line.splitn(3, ':').nth(2)?;
        // Elsewhere, as in /user.slice, users make groups with any name.
        let is_slurms = path.starts_with("/slurm")
            || (path.starts_with("/system.slice/") && path.contains("slurmstepd.scope/"));
        if !is_slurms {
            return None;
        }
        path.split('/')
            .find_map(|part| part.strip_prefix("job_")?.parse().ok())
    })
}

#[cfg(test)]
mod tests {
    use super::{job_of, *};

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

    #[test]
    fn a_control_group_names_its_job() {
        assert_eq!(
            job_of("4:memory:/slurm/uid_1000/job_7/step_0/task_0"),
            Some(7)
        );
        assert_eq!(
            job_of("4:memory:/slurm_n1/uid_1000/job_8/step_batch"),
            Some(8)
        );
        assert_eq!(
            job_of("0::/system.slice/slurmstepd.scope/job_9/step_0/user"),
            Some(9)
        );
        assert_eq!(
            job_of("0::/system.slice/n1_slurmstepd.scope/job_10"),
            Some(10)
        );
    }

    #[test]
    fn another_group_names_none() {
        let made_by_a_user =
            "0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_7";
        assert_eq!(job_of(made_by_a_user), None);
        assert_eq!(job_of("0::/\n4:memory:/system.slice/slurmd.service"), None);
        assert_eq!(job_of(""), None);
    }
}
