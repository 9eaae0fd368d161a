//! The Slurm job that a process belongs to.

use std::fs;

use super::{Process, Uid};

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
        let mut parts = path.split('/').filter(|_| is_slurms);
        parts.find_map(|part| part.strip_prefix("job_")?.parse().ok())
    })
}

#[cfg(test)]
mod tests {
    use super::job_of;

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
