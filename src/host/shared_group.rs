//! Control groups that contain more than one job, by their names: those of services, sessions, users and batch systems.

use super::batch_job::{is_in_job_group, may_have_job_group};
use super::workload::{is_guest_group, parse_container};

/// The types of units in whose groups systemd puts what it starts itself.
const SYSTEMD_UNITS: [&str; 4] = [".service", ".socket", ".mount", ".swap"];

/// The groups in which container engines and the kubelet make those of all containers.
const ENGINE_GROUPS: [&str; 5] = [
    "besteffort",
    "buildkit",
    "burstable",
    "docker",
    "libpod_parent",
];

/// Returns the reason why a control group is not that of one job, by its path; `None` for the group of a job, for a
/// group in it, and for a group whose name tells nothing.
pub fn reason_of_shared_group(group: &str) -> Option<&'static str> {
    let parts: Vec<&str> = group.split('/').filter(|part| !part.is_empty()).collect();
    let (last, above) = parts.split_last()?;
    if is_in_job_group(&parts) {
        return None;
    }
    let ends_with = |end: &str| last.strip_suffix(end).is_some();
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    let stem = last.strip_suffix(".scope").unwrap_or(last);
    if parts.iter().any(|part| is_guest_group(part)) {
        Some("it belongs to a virtual machine or to a container with a system of its own")
    } else if ends_with(".slice") || above.is_empty() {
        Some("its name is that of a whole slice or tree")
    } else if SYSTEMD_UNITS.into_iter().any(ends_with) {
        Some("its name is that of a service")
    } else if *last == "init.scope" {
        Some("its name is that of a service manager")
    } else if last.starts_with("session-") && ends_with(".scope") {
        Some("its name is that of a login session")
    } else if last.strip_prefix("uid_").is_some_and(is_number) {
        Some("its name is that of all programs of a user")
    } else if stem.ends_with(['-', '_', '.']) {
        // The value of a variable is missing.
        Some("its name lacks the ID of a job")
    } else if *above == ["openrc"] {
        Some("its name is that of a service")
    } else if may_have_job_group(above) {
        Some("its name is not that of a job")
    } else if may_have_job_group(&parts) {
        Some("the batch system creates the groups of jobs below it")
    } else if ENGINE_GROUPS.contains(last) {
        Some("its name is that of all containers")
    } else if above.contains(&"user.slice")
        && ends_with(".scope")
        && parse_container(last).is_none()
    {
        // A terminal and what is started in it.
        Some("its name is that of a user's application")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ends of reasons, and the groups that are refused for them.
    const SHARED: [(&str, &[&str]); 11] = [
        (
            "that of a whole slice or tree",
            &[
                "/system.slice",
                "/site",
                "/site.slice/jobs.slice",
                "/pbs.slice/pbs-jobs.slice",
                "/pbs.slice/pbspro.slice",
                "/pbs.slice/pbs-.slice",
                "/oar.slice/oar-u1000-j.slice",
            ],
        ),
        (
            "that of a service",
            &[
                "/system.slice/pbs.service",
                "/system.slice/condor.service",
                "/system.slice/slurmd.service",
                "/system.slice/docker.service",
                "/system.slice/cron.service",
                "/system.slice/job-101.service",
                "/system.slice/sshd.socket",
                "/system.slice/home.mount",
                "/openrc/pbs",
                "/user.slice/user-1000.slice/user@1000.service",
                "/user.slice/user-1000.slice/user@1000.service/app.slice/dbus.service",
                "/user.slice/user-500.slice/user@500.service/imp-shell-0-.service",
            ],
        ),
        (
            "that of a service manager",
            &["/user.slice/user-1000.slice/user@1000.service/init.scope"],
        ),
        (
            "that of a login session",
            &[
                "/user.slice/user-1000.slice/session-5.scope",
                "/user.slice/user-1000.slice/session-c5.scope",
            ],
        ),
        (
            "that of all programs of a user",
            &["/slurm/uid_1000", "/site/uid_1000"],
        ),
        (
            "lacks the ID of a job",
            &[
                "/lsf/cluster1/job.",
                "/slurm/uid_1000/job_",
                "/system.slice/condor.service/htcondor/condor_",
                "/system.slice/sge-shepherd-.scope",
                "/site/job-",
            ],
        ),
        (
            "not that of a job",
            &["/slurm_n1/system", "/lsf/cluster1", "/oar/system"],
        ),
        (
            "creates the groups of jobs below it",
            &[
                "/system.slice/slurmstepd.scope",
                "/pbs_jobs.service/jobid",
                "/pbs_jobs.service/jobs",
                "/system.slice/pbs.service/pbspro",
                "/site/torque",
                "/site/UGE",
                "/system.slice/condor.service/htcondor",
                "/site/oar",
            ],
        ),
        (
            "that of all containers",
            &["/kubepods/burstable", "/system.slice/docker"],
        ),
        (
            "a system of its own",
            &[
                "/machine.slice/machine-n1.scope",
                "/machine/qemu-1-n1.libvirt-qemu",
                "/machine.slice/machine-qemu\\x2d1\\x2dn1.scope/libvirt/emulator",
                "/machine.slice/systemd-nspawn@n1.service/payload",
                "/lxc/n1",
                "/lxc/101/ns",
                "/lxc.payload.n1",
                "/system.slice/lxc.payload.n1/site/101",
            ],
        ),
        (
            "that of a user's application",
            &["/user.slice/user-1000.slice/user@1000.service/app.slice/vte-spawn-7.scope"],
        ),
    ];

    #[test]
    fn groups_of_services_sessions_and_batch_systems_have_more_than_one_job() {
        for (reason, groups) in SHARED {
            for group in groups {
                let found = reason_of_shared_group(group);
                assert!(
                    found.is_some_and(|found| found.ends_with(reason)),
                    "{group}: {found:?}"
                );
            }
        }
    }

    #[test]
    fn a_group_of_one_job_and_an_unknown_name_have_no_such_reason() {
        let container = "6552905b87fd9f0aca7dd140834c594e6873cf24b2ac9dd0023972d5b6ead6dc";
        let container =
            format!("/user.slice/user-7.slice/user@7.service/user.slice/libpod-{container}.scope");
        for group in [
            "/pbs_jobs.service/jobid/7.server",
            "/pbs_jobs.service/jobid/7.server/init.scope",
            "/pbspro.slice/pbspro-7.server.slice",
            "/torque/7.server",
            "/lsf/cluster1/job.7",
            "/UGE/7.1",
            "/sge.slice/sge-shepherd.slice/sge-shepherd-7-0.slice/sge-shepherd-7-0.scope",
            "/system.slice/condor.service/htcondor/condor_slot1_1@n1",
            "/oar/alice_7",
            "/oar.slice/oar-u1000.slice/oar-u1000-j7.slice",
            "/user.slice/user-500.slice/user@500.service/imp-shell-0-f7.service",
            "/slurm/uid_1000/job_7",
            "/slurm/uid_1000/job_7/step_0",
            "/lxc/n1/pbs_jobs.service/jobid/7.server",
            "/system.slice/site-batch.service/101",
            "/site.slice/run-u7.scope",
            "/site/101",
            "/site/jobs/101",
            "/site/lxchen/101",
            "/site/jobs/machine-3",
            "/user.slice/user-1000.slice/session-5.scope/101",
            &container,
        ] {
            assert_eq!(reason_of_shared_group(group), None, "{group}");
        }
    }
}
