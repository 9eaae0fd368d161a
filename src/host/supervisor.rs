//! Whatever keeps a process running: a batch system, an engine of containers, systemd. The process ends for good where it was
//! started.

use std::fmt;

use super::batch_job::job_group;
use super::holders::{service_of_user, unit_of};
use super::workload::{Workload, guest_group};
use super::{Process, Uid};

/// Whatever keeps a process running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Supervisor {
    SlurmJob(u32),
    /// A job of another batch system, by its control group.
    BatchJob(String),
    /// A pod, by its namespace and name, or else by its UID.
    Pod(String),
    /// A container, by its id.
    Container(String),
    /// A virtual machine or a container with a system of its own, by its control group.
    Guest(String),
    /// A service of systemd.
    Service(String),
    /// A service of this user's own systemd.
    UserService(Uid, String),
}

/// The number of digits that a message shows of a container's id.
const SHOWN_ID_DIGITS: usize = 12;

/// `nvidia-mps.service`, `Slurm job 7`, `pod default/trainer`
impl fmt::Display for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SlurmJob(job) => write!(f, "Slurm job {job}"),
            Self::BatchJob(group) => write!(f, "batch job {group}"),
            Self::Pod(pod) => write!(f, "pod {pod}"),
            Self::Container(id) => write!(f, "container {id:.SHOWN_ID_DIGITS$}"),
            Self::Guest(name) | Self::Service(name) | Self::UserService(_, name) => {
                f.write_str(name)
            }
        }
    }
}

impl Process {
    /// Returns whatever keeps the process running; `None` if nothing does, or it cannot be seen.
    pub fn find_supervisor(&self) -> Option<Supervisor> {
        Supervisor::from_control_groups(&self.control_groups()?, self.find_workload())
    }
}

impl Supervisor {
    /// Reads the lines of `/proc/PID/cgroup`. Where users give groups any name, only systemd's own are believed.
    fn from_control_groups(groups: &str, workload: Option<Workload>) -> Option<Self> {
        let Workload {
            slurm_job,
            pod_uid,
            pod_name,
            container_id,
            ..
        } = workload.unwrap_or_default();
        if let Some(job) = slurm_job {
            return Some(Self::SlurmJob(job));
        }
        if let Some(pod) = pod_name.or(pod_uid) {
            return Some(Self::Pod(pod));
        }
        if let Some(id) = container_id {
            return Some(Self::Container(id));
        }
        if let Some(name) = guest_group(groups) {
            return Some(Self::Guest(name));
        }
        let job = job_group(groups).filter(|group| !group.contains(char::is_control));
        let of_user = service_of_user(groups);
        // Flux runs jobs as services of a user's systemd. Users give other groups below that any name.
        if let Some(job) = job.filter(|job| !job.contains("/user@") || job.ends_with(".service")) {
            return Some(Self::BatchJob(job));
        }
        if let Some((user, name)) = of_user {
            return Some(Self::UserService(user, name));
        }
        let unit = unit_of(groups).filter(|unit| is_service(unit))?;
        Some(Self::Service(unit))
    }
}

/// True for a service that is not a user's whole session, by a name that systemd allows.
pub fn is_service(unit: &str) -> bool {
    let name = unit.strip_suffix(".service");
    name.is_some_and(|name| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "@._-:\\".contains(c);
        !name.starts_with("user@") && name.chars().all(is_plain)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d";

    #[track_caller]
    fn is(groups: &str, expected: &str) {
        let groups = groups.replace("ID", ID);
        let found =
            Supervisor::from_control_groups(&groups, Workload::from_control_groups(&groups));
        let found = found.map_or_else(String::new, |found| found.to_string());
        assert_eq!(found, expected, "{groups}");
    }

    #[test]
    fn the_outermost_one_ends_a_process_for_good() {
        is(
            "0::/system.slice/nvidia-mps.service\n",
            "nvidia-mps.service",
        );
        is(
            "12:devices:/\n1:name=systemd:/system.slice/mps@0.service\n0::/\n",
            "mps@0.service",
        );
        is("0::/slurm/uid_1000/job_7/step_0\n", "Slurm job 7");
        is(
            "0::/system.slice/docker-ID.scope\n",
            "container 9ec39b91f3d7",
        );
        is(
            "0::/kubepods/besteffort/pod6dbbf17e-94e1-4b10-8555-9bfe510c25d5/ID\n",
            "pod 6dbbf17e-94e1-4b10-8555-9bfe510c25d5",
        );
        is(
            "0::/pbs_jobs.service/jobid/7.server\n",
            "batch job pbs_jobs.service/jobid/7.server",
        );
        is(
            "0::/lxc.payload.guest/system.slice/mps.service\n",
            "lxc.payload.guest",
        );
        is(
            "0::/machine.slice/machine-qemu.scope/libvirt\n",
            "machine-qemu.scope",
        );
        let user = "0::/user.slice/user-1000.slice/user@1000.service";
        is(&format!("{user}/app.slice/mps.service\n"), "mps.service");
        is(&format!("{user}/slurm/job_7/step_0\n"), "");
        is(
            &format!("{user}/imp-shell-0-f1.service\n"),
            "batch job user.slice/user-1000.slice/user@1000.service/imp-shell-0-f1.service",
        );
        for none in [
            "",
            "0::/\n",
            "0::/user.slice/user-1000.slice/session-3.scope\n",
            "0::/system.slice/mig-mps-0.0-12.scope\n",
            "0::/user.slice/user-1000.slice/user@1000.service/init.scope\n",
            "0::/system.slice/a`b.service\n",
        ] {
            is(none, "");
        }
    }
}
