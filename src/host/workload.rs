//! The job, the pod or the container that a process belongs to, by its control groups.

use std::fmt;
use std::fs;
use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;

use super::BatchJob;

/// The job, pod or container that a program belongs to, by the names of its control groups. All fields are null for a
/// program of none.
// Only root makes groups in the parts of the tree that are read. In others, users and guests give them any name, but for
// line breaks, which the kernel refuses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Workload {
    /// The id of the Slurm job.
    pub slurm_job: Option<u32>,
    /// The step of the job: a number, or a word such as `batch`; null if it is unknown.
    pub slurm_step: Option<String>,
    /// The job of another batch system.
    pub batch_job: Option<BatchJob>,
    /// The UID of the Kubernetes pod.
    pub pod_uid: Option<String>,
    /// The namespace and the name of the pod, such as `default/trainer`; null if they are unknown.
    pub pod_name: Option<String>,
    /// The id of the container; of containers in a container, the outermost.
    pub container_id: Option<String>,
}

/// The number of digits that a table shows of a pod's UID and of a container's id.
const SHOWN_ID_DIGITS: usize = 8;

/// The directory in which the kubelet makes one for the logs of each pod: `NAMESPACE_NAME_UID`.
const POD_LOGS: &str = "var/log/pods";

/// `slurm 7.0`, `pod default/trainer`, `pod 6dbbf17e`, `container 9ec39b91`, `pbs 7.server`; nothing for a process of none of these.
impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.slurm_job, &self.pod_uid, &self.container_id) {
            (Some(job), ..) => match &self.slurm_step {
                Some(step) => write!(f, "slurm {job}.{step}"),
                None => write!(f, "slurm {job}"),
            },
            (None, Some(uid), _) => match &self.pod_name {
                Some(name) => write!(f, "pod {name}"),
                None => write!(f, "pod {uid:.SHOWN_ID_DIGITS$}"),
            },
            (None, None, id) => match (&self.batch_job, id) {
                (Some(job), _) => write!(f, "{job}"),
                (None, Some(id)) => write!(f, "container {id:.SHOWN_ID_DIGITS$}"),
                (None, None) => Ok(()),
            },
        }
    }
}

impl Workload {
    /// True if the process belongs to a job, a pod or a container.
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }

    /// True for a container that no pod has, and no job of Slurm.
    pub(super) fn is_only_container(&self) -> bool {
        self.container_id.is_some() && self.pod_uid.is_none() && self.slurm_job.is_none()
    }

    /// Reads the lines of `/proc/PID/cgroup`: `0::PATH` of version 2, and `4:memory:PATH` of version 1. Returns `None` if
    /// they do not tell: there are none, or a path begins outside the groups that this process can see.
    pub(super) fn from_control_groups(groups: &str) -> Option<Self> {
        let mut is_known = !groups.is_empty();
        let mut all = Vec::new();
        for path in groups.lines().filter_map(|line| line.splitn(3, ':').nth(2)) {
            let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
            if parts.contains(&"..") {
                is_known = false;
            } else {
                all.push(Self::from_path_parts(&parts));
            }
        }
        // Slurm may run in a container, and a job's container in the job.
        let job = all.iter().position(|one| one.slurm_job.is_some());
        let found = job.or_else(|| all.iter().position(Self::is_any));
        match found {
            Some(nth) => Some(all.swap_remove(nth)),
            None => is_known.then(Self::default),
        }
    }

    /// Adds the name of the pod, if the kubelet of the machine below this root has made a directory for its logs.
    pub(super) fn with_pod_name(self, root: &Path) -> Self {
        let name = self.pod_uid.as_ref().and_then(|uid| {
            let entries = fs::read_dir(root.join(POD_LOGS)).ok()?.flatten();
            entries
                .filter_map(|entry| entry.file_name().into_string().ok())
                .find_map(|name| name_of_pod(&name, uid))
        });
        Self {
            pod_name: name,
            ..self
        }
    }

    /// Reads the parts of a path from the root on, up to the first job or container: the rest was made inside that.
    fn from_path_parts(parts: &[&str]) -> Self {
        let mut found = Self::default();
        let (mut is_in_slices, mut is_of_kubelet) = (true, false);
        for (nth, part) in parts.iter().enumerate() {
            if is_named_by_others(part) {
                break;
            }
            // /slurm/uid_1000/job_7/step_0, and /system.slice/slurmstepd.scope/job_7/step_0; with several slurmd on a
            // machine, slurm_NODE and NODE_slurmstepd.scope.
            let is_slurms = nth == 0 && part.starts_with("slurm")
                || is_in_slices && part.ends_with("slurmstepd.scope");
            if is_slurms {
                return Self::from_slurm_path(&parts[nth + 1..]);
            }
            is_in_slices &= part.strip_suffix(".slice").is_some();
            is_of_kubelet |= part.contains("kubepods");
            if is_of_kubelet && let Some(uid) = parse_pod_uid(part) {
                found.pod_uid = Some(uid);
            }
            let is_pod_of_podman = nth > 0 && parts[nth - 1] == "libpod_parent";
            if let Some((engine, id)) = parse_container(part)
                && !(engine.is_empty() && is_pod_of_podman)
            {
                found.container_id = Some(id.to_owned());
                break;
            }
        }
        found
    }

    fn from_slurm_path(parts: &[&str]) -> Self {
        let Some(nth) = parts.iter().position(|part| parse_job_id(part).is_some()) else {
            return Self::default();
        };
        let step = parts
            .get(nth + 1)
            .and_then(|part| part.strip_prefix("step_"));
        let is_plain = |step: &&str| step.chars().all(|c| c.is_ascii_alphanumeric());
        Self {
            slurm_job: parse_job_id(parts[nth]),
            slurm_step: step.filter(is_plain).map(str::to_owned),
            ..Self::default()
        }
    }
}

fn parse_job_id(part: &str) -> Option<u32> {
    part.strip_prefix("job_")?.parse().ok()
}

/// The services that make groups for containers.
const ENGINES: [&str; 12] = [
    "containerd.service",
    "cri-docker.service",
    "crio.service",
    "docker.service",
    "k0scontroller.service",
    "k0sworker.service",
    "k3s-agent.service",
    "k3s.service",
    "rke2-agent.service",
    "rke2-server.service",
    "snap.microk8s.daemon-containerd.service",
    "snap.microk8s.daemon-kubelite.service",
];

/// True for a group below which plain users, or the administrators of a virtual machine or an LXC container, give groups
/// any name. systemd may have delegated a service's group to its user.
pub(super) fn is_named_by_others(part: &str) -> bool {
    part == "user.slice"
        || is_guest_group(part)
        || part.strip_suffix(".service").is_some() && !ENGINES.contains(&part)
}

/// Returns the group of the virtual machine or of the container with a system of its own in which the process runs, by the
/// lines of `/proc/PID/cgroup`.
pub(super) fn guest_group(groups: &str) -> Option<String> {
    let guest = groups
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .flat_map(|path| path.split('/'))
        .find(|part| is_guest_group(part))?;
    (!guest.contains(char::is_control)).then(|| guest.to_owned())
}

/// True for the group of a virtual machine, or of a container with a system of its own.
pub(super) fn is_guest_group(part: &str) -> bool {
    let is_unit =
        |start: &str, end: &str| part.starts_with(start) && part.strip_suffix(end).is_some();
    let ends_of_libvirt = [".libvirt-lxc", ".libvirt-qemu"];
    part == "lxc"
        || part.starts_with("lxc.")
        || is_unit("machine-", ".scope")
        || is_unit("systemd-nspawn@", ".service")
        || ends_of_libvirt
            .iter()
            .any(|end| part.strip_suffix(end).is_some())
}

/// Returns the UID of a pod: of `pod6dbbf17e-94e1-…`, with systemd of `kubepods-burstable-pod6dbbf17e_94e1_….slice`, and of
/// the latter with `:cri-containerd:ID` where containerd and the kubelet differ about systemd. That of a static pod has no
/// hyphens.
fn parse_pod_uid(part: &str) -> Option<String> {
    let name = part.split(':').next()?.trim_end_matches(".slice");
    let (_, uid) = name.rsplit_once("pod")?;
    let uid = uid.replace('_', "-");
    let lengths: Vec<usize> = uid.split('-').map(str::len).collect();
    let is_uid = matches!(lengths.as_slice(), [8, 4, 4, 4, 12] | [32])
        && uid.chars().all(|c| c == '-' || is_hex_digit(c));
    is_uid.then_some(uid)
}

/// Returns `NAMESPACE/NAME` if the directory of logs is of the pod with this UID.
fn name_of_pod(directory: &str, uid: &str) -> Option<String> {
    let (pod, _) = directory
        .rsplit_once('_')
        .filter(|(_, of_pod)| *of_pod == uid)?;
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._".contains(c);
    pod.chars().all(is_plain).then(|| pod.replacen('_', "/", 1))
}

/// Returns the engine and the id of a container: of `docker-ID.scope`, `cri-containerd-ID.scope`, `crio-ID.scope`,
/// `libpod-ID.scope`, `libpod-payload-ID`, `…:cri-containerd:ID`, and of `ID` alone.
pub(super) fn parse_container(part: &str) -> Option<(&str, &str)> {
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let (engine, id) = name.rsplit_once(['-', ':']).unwrap_or(("", name));
    // The monitor of a container is not in it.
    let is_one = id.len() == 64 && id.chars().all(is_hex_digit) && !engine.ends_with("conmon");
    is_one.then_some((engine, id))
}

/// True for a hexadecimal digit as engines write it.
fn is_hex_digit(c: char) -> bool {
    matches!(c, '0'..='9' | 'a'..='f')
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "6dbbf17e-94e1-4b10-8555-9bfe510c25d5";
    const ID: &str = "6552905b87fd9f0aca7dd140834c594e6873cf24b2ac9dd0023972d5b6ead6dc";

    /// Reads the groups: `JOB.STEP`, `pod`, `container`, in short words; `unknown` if they do not tell.
    fn read(groups: &str) -> String {
        let groups = groups
            .replace("UID", UID)
            .replace("U_I_D", &UID.replace('-', "_"))
            .replace("ID", ID);
        let Some(found) = Workload::from_control_groups(&groups) else {
            return "unknown".to_owned();
        };
        let mut words = Vec::new();
        if let Some(job) = found.slurm_job {
            words.push(format!("{job}.{}", found.slurm_step.unwrap_or_default()));
        }
        for (word, value, whole) in [
            ("pod", found.pod_uid, UID),
            ("container", found.container_id, ID),
        ] {
            if let Some(value) = value {
                assert_eq!(value, whole, "{groups}");
                words.push(word.to_owned());
            }
        }
        words.join(" ")
    }

    #[track_caller]
    fn all(forms: &[(&str, &str)]) {
        for (groups, expected) in forms {
            assert_eq!(read(groups), *expected, "{groups}");
        }
    }

    #[test]
    fn jobs_of_slurm() {
        all(&[
            ("4:memory:/slurm/uid_1000/job_7/step_0/task_0\n", "7.0"),
            ("4:memory:/slurm_n1/uid_1000/job_8/step_batch", "8.batch"),
            (
                "10:devices:/slurm/uid_2101171/job_280678/step_interactive/task_0",
                "280678.interactive",
            ),
            (
                "0::/system.slice/slurmstepd.scope/job_9/step_0/user/task_0\n",
                "9.0",
            ),
            (
                "0::/system.slice/slurmstepd.scope/job_9/step_extern/user",
                "9.extern",
            ),
            ("0::/system.slice/n1_slurmstepd.scope/job_10", "10."),
            // The version 1 tree of systemd says where slurmd was started, and that of a login where its user was.
            (
                "12:pids:/system.slice/slurmd.service\n4:memory:/slurm/uid_1000/job_7/step_0\n1:name=systemd:/system.slice/slurmd.service\n0::/\n",
                "7.0",
            ),
            (
                "4:freezer:/slurm/uid_1000/job_7/step_extern\n1:name=systemd:/user.slice/user-1000.slice/session-3.scope\n",
                "7.extern",
            ),
            ("0::/system.slice/slurmstepd.scope/system", ""),
            ("0::/slurm/uid_1000/job_x/step_0", ""),
            ("0::/slurm/uid_1000/job_7/step_\u{1b}[2J", "7."),
        ]);
    }

    #[test]
    fn the_logs_of_a_pod_tell_its_name() {
        let name = |directory: &str| name_of_pod(&directory.replace("UID", UID), UID);
        assert_eq!(name("ml_train-0_UID").as_deref(), Some("ml/train-0"));
        for other in ["ml_train-0_UIE", "UID", "ml_train-0", "ml_\u{1b}[2J_UID"] {
            assert_eq!(name(other), None, "{other}");
        }
    }

    #[test]
    fn pods() {
        all(&[
            (
                "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_I_D.slice/cri-containerd-ID.scope\n",
                "pod container",
            ),
            (
                "0::/kubepods.slice/kubepods-podU_I_D.slice/crio-ID.scope",
                "pod container",
            ),
            (
                "0::/kubepods.slice/kubepods-podU_I_D.slice/crio-conmon-ID.scope",
                "pod",
            ),
            (
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_I_D.slice/docker-ID.scope",
                "pod container",
            ),
            (
                "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podU_I_D.slice/cri-containerd-ID.scope",
                "pod container",
            ),
            (
                "11:memory:/system.slice/k0sworker.service/kubepods-burstable-podU_I_D.slice:cri-containerd:ID",
                "pod container",
            ),
            (
                "11:memory:/system.slice/snap.microk8s.daemon-containerd.service/kubepods-podU_I_D.slice:cri-containerd:ID",
                "pod container",
            ),
            ("11:memory:/kubepods/burstable/podUID/ID", "pod container"),
            ("11:memory:/kubepods/podUID/crio-ID", "pod container"),
            (
                "11:memory:/system.slice/containerd.service/kubepods-burstable-podU_I_D.slice:cri-containerd:ID",
                "pod container",
            ),
            ("0::/kubepods/besteffort/podUID", "pod"),
            // What is no UID is none.
            ("0::/kubepods/besteffort/podcast", ""),
            ("0::/kubepods/besteffort/pod", ""),
            ("0::/podUID", ""),
        ]);
        let fixed = format!("0::/kubepods/burstable/pod{}", &ID[..32]);
        let found = Workload::from_control_groups(&fixed).unwrap();
        assert_eq!(found.pod_uid.as_deref(), Some(&ID[..32]), "a static pod");
    }

    #[test]
    fn containers() {
        all(&[
            ("10:devices:/system.slice/docker-ID.scope\n", "container"),
            ("12:cpuset:/docker/ID", "container"),
            ("0::/machine.slice/libpod-ID.scope/container", "container"),
            (
                "0::/machine.slice/machine-libpod_pod_ID.slice/libpod-ID.scope",
                "container",
            ),
            ("0::/libpod_parent/libpod-ID", "container"),
            ("0::/libpod_parent/ID", ""),
            ("0::/machine.slice/libpod-conmon-ID.scope", ""),
            ("0::/system.slice/nerdctl-ID.scope", "container"),
            ("0::/default/ID", "container"),
            ("0::/docker/abc123", ""),
            ("0::/system.slice/docker.service", ""),
            ("0::/\n", ""),
        ]);
    }

    #[test]
    fn groups_that_users_and_guests_name_say_nothing() {
        let user = "0::/user.slice/user-1000.slice/user@1000.service";
        let service = "0::/system.slice/jupyter-alice.service";
        all(&[
            (&format!("{user}/slurmstepd.scope/job_7/step_0"), ""),
            (&format!("{user}/kubepods/podUID/ID"), ""),
            (&format!("{user}/user.slice/libpod-ID.scope/container"), ""),
            (&format!("{service}/slurmstepd.scope/job_7"), ""),
            (&format!("{service}/slurm/uid_0/job_7"), ""),
            (&format!("{service}/kubepods/podUID/ID"), ""),
            (&format!("{service}/libpod-payload-ID"), ""),
            (
                "0::/machine.slice/systemd-nspawn@guest.service/payload/kubepods/podUID/ID",
                "",
            ),
            ("0::/lxc.payload.guest/slurmstepd.scope/job_7", ""),
            ("0::/lxc/101/ns/system.slice/docker-ID.scope", ""),
            (
                "0::/machine.slice/machine-guest.scope/payload/kubepods/podUID/ID",
                "",
            ),
        ]);
    }

    #[test]
    fn the_outermost_container_is_that_of_the_node() {
        let inner = "6552905b87fd".repeat(5) + "abcd";
        let uid = UID.replace('-', "_");
        let groups = format!(
            "0::/system.slice/docker-{ID}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{uid}.slice/cri-containerd-{inner}.scope"
        );
        assert_eq!(read(&groups), "container");
        all(&[(
            "0::/docker/ID/system.slice/slurmstepd.scope/job_7",
            "container",
        )]);
    }

    #[test]
    fn groups_that_cannot_be_seen_are_unknown() {
        all(&[
            ("", "unknown"),
            ("0::/../cri-containerd-ID.scope", "unknown"),
            ("4:memory:/..\n0::/\n", "unknown"),
            ("4:memory:/slurm/uid_0/job_7/step_0\n0::/..\n", "7.0"),
        ]);
    }

    #[test]
    fn a_table_shows_the_job_or_the_first_digits() {
        let shown = |groups: &str| Workload::from_control_groups(groups).unwrap().to_string();
        assert_eq!(shown("4:memory:/slurm/uid_0/job_7/step_0"), "slurm 7.0");
        assert_eq!(shown("4:memory:/slurm/uid_0/job_7"), "slurm 7");
        let in_pod = format!("0::/kubepods/pod{UID}/{ID}");
        assert_eq!(shown(&in_pod), "pod 6dbbf17e");
        assert_eq!(shown(&format!("0::/docker/{ID}")), "container 6552905b");
        assert_eq!(shown("0::/"), "");
    }
}
