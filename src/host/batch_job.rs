//! The jobs of batch systems: the caller's, which ends together, and the names of those of others.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use super::workload::{is_named_by_others, parse_container};
use super::{Environ, Host, Uid, caller};

/// The variables with the ids of jobs, where no control group tells: of Slurm and its steps, PBS and Torque, LSF and its
/// arrays, OAR, Flux, `HTCondor`, Cobalt, and Fujitsu's. A job in a job has both.
const JOB_ID_VARIABLES: [&str; 10] = [
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "LSB_JOBINDEX",
    "OAR_JOB_ID",
    "FLUX_JOB_ID",
    "_CONDOR_JOB_AD",
    "COBALT_JOBID",
    "PJM_JOBID",
];

/// Grid Engine's. Other programs set the first one as well, and no other the second.
const GRID_ENGINE_VARIABLES: [&str; 2] = ["JOB_ID", "SGE_TASK_ID"];

impl Host {
    /// Returns a word for the job that the caller belongs to, the same for all its processes on this node; `None` outside
    /// jobs. A job step of Slurm counts as a job.
    ///
    /// The nearest control group that a batch system has made decides, since its end is the end of what is in it. So does a
    /// login session whose processes logind ends. The caller can set the variables, so they decide only which of the caller's
    /// programs belong together. `recorded` has the control groups of the jobs that `mig-mps job begin` has recorded.
    pub fn own_job(
        &self,
        recorded: &[String],
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Option<String> {
        let groups = fs::read_to_string(self.root.join("proc/self/cgroup")).unwrap_or_default();
        let hasher = BuildHasherDefault::<DefaultHasher>::new();
        let own_recorded = recorded.iter().find(|group| has_group(&groups, group));
        let hash = if let Some(group) = job_group(&groups).or_else(|| own_recorded.cloned()) {
            hasher.hash_one(group)
        } else if let Some(ids) = job_ids(variable) {
            hasher.hash_one(ids)
        } else {
            let session = session_group(&groups)?;
            if !self.ends_sessions() {
                return None;
            }
            hasher.hash_one(session)
        };
        Some(format!("{hash:016x}"))
    }

    /// Returns the control group that a batch system other than Slurm has made for the job of the caller.
    pub fn own_job_group(&self) -> Option<String> {
        job_group_path(&fs::read_to_string(self.root.join("proc/self/cgroup")).ok()?)
    }

    /// Returns a control group by its path in `/proc/PID/cgroup`, or by that of its directory, in the form in which groups
    /// are compared; `None` if it can be neither, or is the root of all groups.
    pub fn control_group_at(&self, path: &str) -> Option<String> {
        let (path, ends_with_slash) = match path.strip_suffix('/') {
            Some(path) => (path, true),
            None => (path, false),
        };
        let group = match path.strip_prefix("/sys/fs/cgroup/") {
            Some(inner) if self.root.join("sys/fs/cgroup/cgroup.controllers").exists() => inner,
            // Version 1 has a tree for each controller.
            Some(inner) => {
                let (tree, inner) = inner.split_once('/')?;
                let trees = self.root.join("sys/fs/cgroup");
                let is_tree = !trees.exists() || trees.join(tree).is_dir();
                is_tree.then_some(inner)?
            }
            None => path
                .strip_prefix('/')
                .filter(|inner| !is_in_kernel_tree(inner))?,
        };
        let group = format!("/{group}");
        let parts = parse_group(&group)?;
        if parts.iter().any(|part| is_control_file(part)) {
            return None;
        }
        let group = format!("/{}", parts.join("/"));
        // The slash may lack the value of a variable behind it.
        let is_whole = !ends_with_slash || is_named_for_job(&group);
        (is_whole && path != "/sys/fs/cgroup").then_some(group)
    }

    /// True if a control group has no directory, although the directories of groups are there.
    pub fn lacks_control_group(&self, group: &str) -> bool {
        let groups = self.root.join("sys/fs/cgroup");
        let inner = Path::new(group.trim_start_matches('/'));
        let (above, last) = (inner.parent().unwrap_or(inner), inner.file_name());
        let entries = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten();
        // LSF has several groups for a job.
        let has_group = |tree: &Path| {
            tree.join(inner).exists()
                || entries(&tree.join(above))
                    .filter_map(|entry| entry.file_name().into_string().ok())
                    .any(|name| last == Some(OsStr::new(strip_process(&name))))
        };
        let trees: Vec<PathBuf> = entries(&groups).map(|tree| tree.path()).collect();
        // Version 2 has one tree, version 1 one for each controller.
        !trees.is_empty() && !has_group(&groups) && !trees.iter().any(|tree| has_group(tree))
    }

    /// True if logind ends the caller's processes with their session: `KillUserProcesses=` (logind.conf(5)), by default not
    /// for root. Distributions set it to no unless a file says otherwise.
    fn ends_sessions(&self) -> bool {
        // Of two files with one name, the later one counts.
        let places = ["usr/lib", "usr/local/lib", "run", "etc"]
            .map(|place| self.root.join(place).join("systemd"));
        let own = places
            .iter()
            .rev()
            .map(|place| place.join("logind.conf"))
            .find(|file| file.exists());
        let parts: BTreeMap<OsString, _> = places
            .iter()
            .filter_map(|place| fs::read_dir(place.join("logind.conf.d")).ok())
            .flat_map(Iterator::flatten)
            .filter(|file| file.path().extension().is_some_and(|kind| kind == "conf"))
            .map(|file| (file.file_name(), file.path()))
            .collect();
        let last = own
            .into_iter()
            .chain(parts.into_values())
            .filter_map(|file| fs::read_to_string(file).ok())
            .filter_map(|text| parse_kill_user_processes(&text))
            .next_back();
        caller() != Uid::ROOT && last == Some(true)
    }
}

/// The job of a batch system other than Slurm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct BatchJob {
    /// The batch system, such as `pbs`, `lsf`, `sge`, `htcondor`, `oar` or `flux`; null for a job of `mig-mps job begin`.
    pub system: Option<&'static str>,
    /// The id of the job, such as `7.server`, or the slot of `HTCondor`.
    pub id: String,
    /// True if users can forge it: only the environment of the program has it, or a control group of a user.
    pub unverified: bool,
}

/// `pbs 7.server`, `job 7` of `mig-mps job begin`, and with a question mark what is not verified.
impl fmt::Display for BatchJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.unverified { "?" } else { "" };
        write!(f, "{} {}{mark}", self.system.unwrap_or("job"), self.id)
    }
}

/// The variables from which the name of a job is read, with the batch system and the variable of the array index.
const NAMED_BY_VARIABLE: [(&str, &str, Option<&str>); 8] = [
    ("slurm", "SLURM_JOB_ID", None),
    ("pbs", "PBS_JOBID", None),
    ("lsf", "LSB_JOBID", Some("LSB_JOBINDEX")),
    ("oar", "OAR_JOB_ID", None),
    ("flux", "FLUX_JOB_ID", None),
    ("htcondor", "_CONDOR_SLOT", None),
    ("cobalt", "COBALT_JOBID", None),
    ("pjm", "PJM_JOBID", None),
];

/// The most bytes of a job's id: the job of a server with a long name has a long id.
const MAX_ID_LENGTH: usize = 128;

impl BatchJob {
    /// Reads the lines of `/proc/PID/cgroup`. The name of a group that users may have made is unverified.
    pub(super) fn from_control_groups(groups: &str) -> Option<Self> {
        let (parts, system, id) = find_job_group(groups)?;
        let unverified = parts.iter().any(|part| is_of_user(part));
        Self::new(system, unescape(id), unverified)
    }

    /// Reads the environment of a process.
    pub(super) fn from_environment(environ: &Environ) -> Option<Self> {
        let value = |name: &str| environ.get(name).filter(|value| !value.is_empty()).cloned();
        let named = NAMED_BY_VARIABLE.iter().find_map(|(system, name, index)| {
            let id = value(name)?;
            let index = index.and_then(value).filter(|index| index != "0");
            Some((*system, id, index))
        });
        if let Some((system, id, index)) = named {
            let id = index.map_or_else(|| id.clone(), |index| format!("{id}[{index}]"));
            return Self::new(system, id, true);
        }
        let [job, task] = GRID_ENGINE_VARIABLES;
        let (id, task) = (value(job)?, value(task)?);
        let id = match task.as_str() {
            "undefined" => id,
            _ => format!("{id}.{task}"),
        };
        Self::new("sge", id, true)
    }

    /// Returns `None` for an id that is no name of a job: a user may have made it.
    fn new(system: &'static str, id: String, unverified: bool) -> Option<Self> {
        is_job_name(&id).then_some(Self {
            system: Some(system),
            id,
            unverified,
        })
    }
}

/// True for text that can be the id of a job, and is safe to show.
pub fn is_job_name(id: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-[]@:#=ƒ".contains(c);
    (1..=MAX_ID_LENGTH).contains(&id.len()) && id.chars().all(is_plain)
}

/// The services in whose groups batch systems make those of jobs.
const BATCH_SERVICES: [&str; 4] = [
    "condor.service",
    "lsfd.service",
    "pbs.service",
    "pbs_jobs.service",
];

/// True for a group below which users may have given groups any name.
fn is_of_user(part: &str) -> bool {
    !BATCH_SERVICES.contains(&part) && is_named_by_others(part)
}

/// Returns a name without the escapes of systemd, such as `\x5b` for `[`.
fn unescape(name: &str) -> String {
    let mut parts = name.split("\\x");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part
            .get(..2)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok())
        {
            Some(byte) if byte.is_ascii() => {
                text.push(char::from(byte));
                text.push_str(&part[2..]);
            }
            _ => {
                text.push_str("\\x");
                text.push_str(part);
            }
        }
    }
    text
}

/// Returns the value of `KillUserProcesses=` in a file of logind, if it has one.
fn parse_kill_user_processes(text: &str) -> Option<bool> {
    let mut is_in_section = false;
    let mut last = None;
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            is_in_section = line == "[Login]";
        } else if is_in_section
            && let Some((key, value)) = line.split_once('=')
            && key.trim_end() == "KillUserProcesses"
        {
            let value = value.trim().to_lowercase();
            last = Some(["1", "yes", "y", "true", "t", "on"].contains(&value.as_str()));
        }
    }
    last
}

/// Returns the control group of the login session.
fn session_group(groups: &str) -> Option<&str> {
    groups
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .find_map(|path| {
            let (user, rest) = path.strip_prefix("/user.slice/")?.split_once("/session-")?;
            let number = rest.split('/').next()?;
            (!user.contains('/')).then(|| &path[..path.len() - rest.len() + number.len()])
        })
}

/// Returns the ids of the jobs, each with the name of its variable.
fn job_ids(variable: impl Fn(&str) -> Option<OsString>) -> Option<Vec<(&'static str, OsString)>> {
    let grid_engine = variable(GRID_ENGINE_VARIABLES[1]).map(|_| GRID_ENGINE_VARIABLES);
    let names = JOB_ID_VARIABLES
        .into_iter()
        .chain(grid_engine.into_iter().flatten());
    let ids: Vec<_> = names
        .filter_map(|name| Some((name, variable(name).filter(|id| !id.is_empty())?)))
        .collect();
    (!ids.is_empty()).then_some(ids)
}

/// Returns the innermost group of a job in the lines of `/proc/PID/cgroup`.
pub(super) fn job_group(groups: &str) -> Option<String> {
    let mut jobs = groups
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .filter_map(|path| {
            let parts = strip_processes(path.split('/').filter(|part| !part.is_empty()));
            let mut inner = (0..parts.len()).rev();
            let nth = inner.find(|&nth| is_job_group(&parts[..nth], parts[nth]))?;
            Some(parts[..=nth].join("/"))
        });
    jobs.next()
}

/// Returns the path of the innermost group of a job in the lines of `/proc/PID/cgroup`, unless users may have made it.
pub(super) fn job_group_path(groups: &str) -> Option<String> {
    let (parts, ..) = find_job_group(groups)?;
    let is_verified = !parts.iter().any(|part| is_of_user(part));
    is_verified.then(|| format!("/{}", parts.join("/")))
}

/// Returns the parts of the path of the innermost group of a job in the lines of `/proc/PID/cgroup`, with the batch system
/// and the job. A container names the groups in it as it likes.
fn find_job_group(groups: &str) -> Option<(Vec<&str>, &'static str, &str)> {
    paths_of(groups).find_map(|mut parts| {
        let container = parts
            .iter()
            .position(|part| parse_container(part).is_some());
        let mut inner = (0..container.unwrap_or(parts.len())).rev();
        let (nth, (system, id)) =
            inner.find_map(|nth| Some((nth, parse_job_group(&parts[..nth], parts[nth])?)))?;
        parts.truncate(nth + 1);
        Some((parts, system, id))
    })
}

/// Returns the parts of each path in the lines of `/proc/PID/cgroup`, but for paths that begin outside the visible groups.
fn paths_of(groups: &str) -> impl Iterator<Item = Vec<&str>> {
    groups
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .filter_map(parse_group)
}

/// Returns the parts of the path of a group below the root, as the kernel writes it, in the form in which groups are compared.
fn parse_group(path: &str) -> Option<Vec<&str>> {
    let is_part = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(char::is_control);
    let path = path.strip_prefix('/')?;
    path.split('/')
        .all(is_part)
        .then(|| strip_processes(path.split('/')))
}

/// True for a file or a directory of the kernel, such as `/proc/7/cgroup`, without the first slash.
fn is_in_kernel_tree(path: &str) -> bool {
    let tree = path.split('/').next().unwrap_or_default();
    ["dev", "proc", "sys"].contains(&tree)
}

/// True for the name of a file in the directory of a group, which no group can have.
fn is_control_file(name: &str) -> bool {
    name == "tasks" || name.starts_with("cgroup.")
}

/// Returns the parts of the path of a group without what LSF puts behind a job: a job has several such groups.
fn strip_processes<'a>(parts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut is_below_lsf = false;
    parts
        .map(|part| {
            let stripped = if is_below_lsf {
                strip_process(part)
            } else {
                part
            };
            is_below_lsf |= part.contains("lsf");
            stripped
        })
        .collect()
}

/// True if one of the lines of `/proc/PID/cgroup` has this group, or one below it.
pub(super) fn has_group(groups: &str, group: &str) -> bool {
    parse_group(group).is_some_and(|group| paths_of(groups).any(|path| path.starts_with(&group)))
}

/// True if one of the lines of `/proc/PID/cgroup` has the group of a job below this one.
pub(super) fn has_job_below(groups: &str, group: &str) -> bool {
    let Some(group) = parse_group(group) else {
        return false;
    };
    paths_of(groups)
        .filter(|path| path.starts_with(&group))
        .any(|path| {
            let mut below = group.len()..path.len();
            below.any(|nth| is_job_group(&path[..nth], path[nth]))
        })
}

/// True if the name of a group is that of a batch system's job.
pub fn is_named_for_job(group: &str) -> bool {
    batch_system(group).is_some()
}

/// True for the group of a slot, in which `HTCondor` runs one job after another.
pub fn is_slot_group(group: &str) -> bool {
    batch_system(group) == Some("htcondor")
}

/// Returns the batch system that names the groups of its jobs like this one.
fn batch_system(group: &str) -> Option<&'static str> {
    let parts = parse_group(group)?;
    let (last, above) = parts.split_last()?;
    parse_job_group(above, last).map(|(system, _)| system)
}

/// True for the parts of the path of a job's group, or of a group below one.
pub(super) fn is_in_job_group(parts: &[&str]) -> bool {
    (0..parts.len()).any(|nth| is_job_group(&parts[..nth], parts[nth]))
}

/// True if a group directly below the one with these parts would be a job's by a name that is no job's elsewhere.
pub(super) fn may_have_job_group(parts: &[&str]) -> bool {
    // Of PBS, Torque and Grid Engine; of LSF, Slurm, HTCondor and OAR.
    ["7", "job.7", "job_7", "condor_7", "alice_7"]
        .into_iter()
        .any(|name| is_job_group(parts, name))
}

/// True for the group of a job, by its name and those of the groups above.
fn is_job_group(above: &[&str], name: &str) -> bool {
    let parent = above.last().copied().unwrap_or_default();
    let is_below_slurm = || above.iter().any(|group| group.contains("slurm"));
    let has_id = |name: &str, start: &str| name.strip_prefix(start).is_some_and(begins_with_digit);
    // Slurm: slurm/uid_1000/job_7/step_0 and slurmstepd.scope/job_7/step_0; a task's group is below that of its step.
    (has_id(name, "job_") || has_id(parent, "job_") && name.starts_with("step_"))
        && is_below_slurm()
        || parse_job_group(above, name).is_some()
}

/// Returns the batch system and the job in the name of a group that a system other than Slurm has made. Groups that several
/// jobs share have no id in their names.
fn parse_job_group<'a>(above: &[&str], name: &'a str) -> Option<(&'static str, &'a str)> {
    let parent = above.last().copied().unwrap_or_default();
    let is_below = |system: &str| above.iter().any(|group| group.contains(system));
    let is_number = begins_with_digit(name);
    let unit = |start: &str, end: &str| name.strip_prefix(start)?.strip_suffix(end);
    let id = |id: &&'a str| begins_with_digit(id);
    // PBS: pbs_jobs.service/jobid/7.server, with version 2 of control groups pbs_jobs.service/jobs/7.server, earlier
    // pbspro/7.server and pbspro.slice/pbspro-7.server.slice. Torque: torque/7.server.
    let of_pbs = ["jobid", "jobs", "pbs_jobs", "pbspro"];
    if is_number && of_pbs.contains(&parent) && is_below("pbs") {
        return Some(("pbs", name));
    }
    if is_number && parent == "torque" {
        return Some(("torque", name));
    }
    if is_below("pbs")
        && let Some((_, job)) = unit("pbs", ".slice").and_then(|unit| unit.split_once('-'))
    {
        return Some(job).filter(id).map(|job| ("pbs", job));
    }
    // LSF: lsf/CLUSTER/job.7.PID.TIME
    if is_below("lsf")
        && let Some(job) = name.strip_prefix("job.").filter(id)
    {
        return Some(("lsf", job));
    }
    // Grid Engine: UGE/7.1, and what a site's starter makes.
    if is_number && ["AGE", "UGE", "sge"].contains(&parent) {
        return Some(("sge", name));
    }
    if let Some(job) = unit("sge-shepherd-", ".scope").filter(id) {
        return Some(("sge", job));
    }
    // HTCondor: htcondor/condor_var_lib_condor_execute_slot1_1@node, a group for each slot.
    let is_of_condor = parent == "htcondor" || name.contains("_slot");
    if is_of_condor && name.len() > "condor_".len() && name.starts_with("condor_") {
        return Some(("htcondor", slot_of(name)));
    }
    // OAR: oar/alice_7 and oar-u1000-j7.slice
    let of_oar = if parent == "oar" {
        name.rsplit_once('_')
    } else {
        unit("oar-", ".slice").and_then(|unit| unit.split_once("-j"))
    };
    if let Some((_, job)) = of_oar {
        return Some(job).filter(id).map(|job| ("oar", job));
    }
    // Flux: imp-shell-RANK-ID.service and shell-RANK-ID.service
    let of_flux = unit("imp-shell-", ".service").or_else(|| unit("shell-", ".service"))?;
    let (rank, job) = of_flux.split_once('-')?;
    (rank.parse::<u32>().is_ok() && !job.is_empty()).then_some(("flux", job))
}

fn begins_with_digit(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_digit())
}

/// Returns the name of a group without the process id and the time that LSF puts behind a job, as in `job.7[1].4711.1700000000`.
fn strip_process(name: &str) -> &str {
    let mut parts = name.split('.');
    let is_number = |part: Option<&str>| part.is_some_and(|part| part.parse::<u64>().is_ok());
    match [(); 5].map(|()| parts.next()) {
        [Some("job"), Some(id), pid, time, None] if is_number(pid) && is_number(time) => {
            &name[.."job.".len() + id.len()]
        }
        _ => name,
    }
}

/// Returns the slot in the name of a group of `HTCondor`, such as `slot1_1@node` at the end of `condor_DIRECTORY_slot1_1@node`.
/// The directory and the node may be called slot as well.
fn slot_of(name: &str) -> &str {
    let is_slot = |text: &str| {
        let end = text["slot".len()..].trim_start_matches(|c: char| c.is_ascii_digit() || c == '_');
        end.is_empty() || end.starts_with('@')
    };
    name.match_indices("slot")
        .map(|(start, _)| &name[start..])
        .find(|text| is_slot(text))
        .unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Returns the word for a job with these groups and variables.
    fn job(groups: &str, variables: &[(&str, &str)]) -> Option<String> {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("proc/self");
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join("cgroup"), groups).unwrap();
        Host::at(root.path()).own_job(&[], |name| {
            let mut found = variables.iter().filter(|(known, _)| *known == name);
            found.next().map(|(_, value)| OsString::from(value))
        })
    }

    /// Groups of two processes of a job, and of another job.
    const GROUPS: &[(&str, &str, &str)] = &[
        (
            "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
            "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_1",
            "0::/system.slice/slurmstepd.scope/job_7/step_1/user/task_0",
        ),
        (
            "9:pids:/system.slice/slurmd.service\n4:memory:/slurm/uid_1000/job_7/step_batch",
            "9:pids:/\n4:memory:/slurm/uid_1000/job_7/step_batch/task_0",
            "4:memory:/slurm/uid_1000/job_8/step_batch",
        ),
        (
            "4:memory:/pbs_jobs.service/jobid/7.server",
            "4:memory:/pbs_jobs.service/jobid/7.server/inner",
            "4:memory:/pbs_jobs.service/jobid/8.server",
        ),
        (
            "0::/pbs_jobs.service/jobs/7[1].server",
            "0::/pbs_jobs.service/jobs/7[1].server",
            "0::/pbs_jobs.service/jobs/7[2].server",
        ),
        (
            "4:cpuset:/pbspro.slice/pbspro-7.server.slice",
            "4:cpuset:/pbspro.slice/pbspro-7.server.slice",
            "4:cpuset:/pbspro.slice/pbspro-8.server.slice",
        ),
        (
            "4:cpuset:/torque/7.server",
            "4:cpuset:/torque/7.server",
            "4:cpuset:/torque/8.server",
        ),
        (
            "4:memory:/lsf/cluster1/job.7.4711.1700000000",
            "4:memory:/lsf/cluster1/job.7.4722.1700000009",
            "4:memory:/lsf/cluster1/job.8.4733.1700000000",
        ),
        (
            "4:memory:/lsf/cluster1/job.7[1].4711.1700000000",
            "4:memory:/lsf/cluster1/job.7[1].4722.1700000009",
            "4:memory:/lsf/cluster1/job.7[2].4733.1700000000",
        ),
        (
            "4:cpuset:/UGE/7.1",
            "4:cpuset:/UGE/7.1",
            "4:cpuset:/UGE/7.2",
        ),
        (
            "0::/sge.slice/sge-shepherd.slice/sge-shepherd-7-0.slice/sge-shepherd-7-0.scope",
            "0::/sge.slice/sge-shepherd.slice/sge-shepherd-7-0.slice/sge-shepherd-7-0.scope",
            "0::/sge.slice/sge-shepherd.slice/sge-shepherd-8-0.slice/sge-shepherd-8-0.scope",
        ),
        (
            "0::/system.slice/condor.service/htcondor/condor_var_lib_condor_execute_slot1_1@n1",
            "4:memory:/\n0::/system.slice/condor.service/htcondor/condor_var_lib_condor_execute_slot1_1@n1",
            "0::/system.slice/condor.service/htcondor/condor_var_lib_condor_execute_slot1_2@n1",
        ),
        (
            "4:cpuset:/oar/alice_7",
            "4:cpuset:/oar/alice_7",
            "4:cpuset:/oar/alice_8",
        ),
        (
            "0::/oar.slice/oar-u1000.slice/oar-u1000-j7.slice/oar.scope",
            "0::/oar.slice/oar-u1000.slice/oar-u1000-j7.slice/session.scope",
            "0::/oar.slice/oar-u1000.slice/oar-u1000-j8.slice/oar.scope",
        ),
        (
            "0::/user.slice/user-500.slice/user@500.service/imp-shell-0-f7.service",
            "0::/user.slice/user-500.slice/user@500.service/imp-shell-0-f7.service",
            "0::/user.slice/user-500.slice/user@500.service/imp-shell-0-f8.service",
        ),
        // A job in a job.
        (
            "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0/htcondor/condor_scratch_slot1",
            "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0/htcondor/condor_scratch_slot1",
            "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0/htcondor/condor_scratch_slot2",
        ),
    ];

    #[test]
    fn processes_of_one_group_belong_together() {
        for (one, same, other) in GROUPS {
            let own = job(one, &[]);
            assert!(own.is_some(), "{one}");
            assert_eq!(job(same, &[("PBS_JOBID", "9")]), own, "{one}");
            assert_ne!(job(other, &[]), own, "{one}");
        }
    }

    #[test]
    fn groups_have_the_names_of_jobs() {
        let names: Vec<String> = GROUPS
            .iter()
            .filter_map(|(groups, ..)| BatchJob::from_control_groups(groups))
            .map(|job| job.to_string())
            .collect();
        assert_eq!(
            names,
            [
                "pbs 7.server",
                "pbs 7[1].server",
                "pbs 7.server",
                "torque 7.server",
                "lsf 7",
                "lsf 7[1]",
                "sge 7.1",
                "sge 7-0",
                "htcondor slot1_1@n1",
                "oar 7",
                "oar 7",
                "flux f7?",
                "htcondor slot1",
            ]
        );
        let name = |groups: &str| BatchJob::from_control_groups(groups).map(|job| job.to_string());
        let escaped = "4:cpuset:/pbspro.slice/pbspro-7\\x5b1\\x5d.server.slice";
        assert_eq!(name(escaped).as_deref(), Some("pbs 7[1].server"));
        // Users give the groups below theirs any name.
        for above in [
            "user.slice/user-1000.slice/user@1000.service",
            "system.slice/jupyter-a.service",
        ] {
            let forged = format!("0::/{above}/pbs_jobs.service/jobid/7.server");
            assert_eq!(name(&forged).as_deref(), Some("pbs 7.server?"));
        }
        for nothing in [
            "0::/",
            "0::/pbs_jobs.service/jobid/7\u{1b}[2J",
            "0::/pbs_jobs.service/jobid/7 7",
        ] {
            assert_eq!(name(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn the_group_of_a_job_has_the_processes_of_the_job() {
        for (group, other) in [
            ("/condor_slot1_1@n1", "/condor_slot1_1@n12"),
            (
                "/pbs_jobs.service/jobid/7.server",
                "/pbs_jobs.service/jobid/7.server2",
            ),
            (
                "/lsf/cluster1/job.7.4711.17",
                "/lsf/cluster1/job.70.4711.17",
            ),
        ] {
            let inner = format!("0::{group}/inner");
            let path = job_group_path(&inner).unwrap();
            assert!(has_group(&inner, &path), "{path}");
            assert!(!has_group(&format!("0::{other}/inner"), &path), "{path}");
        }
    }

    /// LSF makes a group for each process that it starts.
    #[test]
    fn the_groups_of_a_job_of_lsf_are_one() {
        let host = Host::at(Path::new("/nowhere"));
        let at = |path: &str| host.control_group_at(path);
        for (path, own, other) in [
            (
                "/lsf/cluster1/job.7.4711.1700000000",
                "/lsf/cluster1/job.7.4722.1700000009/inner",
                "/lsf/cluster1/job.70.4711.1700000000",
            ),
            (
                "/lsf/cluster1/job.7[1].4711.1700000000/",
                "/lsf/cluster1/job.7[1].4722.1700000009",
                "/lsf/cluster1/job.7[2].4711.1700000000",
            ),
            (
                "/lsf/cluster1/job.7/",
                "/lsf/cluster1/job.7.4722.1700000009",
                "/lsf/cluster1/job.7[1].4722.1700000009",
            ),
            (
                "/sys/fs/cgroup/memory/lsf/cluster1/job.7.4711.1700000000/",
                "/lsf/cluster1/job.7",
                "/lsf/cluster2/job.7.4711.1700000000",
            ),
            // Other programs give their groups such names as well.
            (
                "/site/job.7.4711.1700000000",
                "/site/job.7.4711.1700000000/inner",
                "/site/job.7.4722.1700000009",
            ),
            ("/site/job.7", "/site/job.7/x", "/site/job.7.4722.17"),
        ] {
            let group = at(path).unwrap();
            assert!(has_group(&format!("0::{own}"), &group), "{path}: {own}");
            assert!(
                !has_group(&format!("0::{other}"), &group),
                "{path}: {other}"
            );
            assert_eq!(at(&group).as_ref(), Some(&group));
            assert_eq!(is_named_for_job(&group), path.contains("lsf"), "{path}");
        }
    }

    #[test]
    fn only_the_names_of_lsf_lose_a_process() {
        let host = Host::at(Path::new("/nowhere"));
        let at = |path: &str| host.control_group_at(path);
        let inner = "0::/lsf/cluster1/job.7.4711.17/job.8.4712.18";
        assert!(has_job_below(inner, "/lsf/cluster1/job.7"));
        assert!(has_job_below(inner, "/lsf/cluster1/job.7.4722.19"));
        for name in [
            "job.4711.17",
            "job.7.4711.17.18",
            "job.7.4711",
            "job.7.a.17",
        ] {
            let group = format!("/lsf/cluster1/{name}");
            assert_eq!(at(&group), Some(group));
        }
        for path in [
            "",
            "/",
            "//",
            "lsf/x",
            "/a/../b",
            "/a/./b",
            "/a//b",
            "/a/",
            "/pbs_jobs.service/jobid/",
            "/lsf/cluster1/job.7//",
            "/sys/fs/cgroup",
            "/sys/fs/cgroup/",
            "/sys/fs/cgroup/memory/",
            "/sys/fs/cgroup/memory/site/101/tasks",
            "/sys/fs/cgroup/memory/site/101/cgroup.procs",
            "/sys/kernel/101",
            "/site/101/cgroup.procs",
            "/proc/self/cgroup",
            "/proc/7",
            "/dev/cgroup/101",
            "/a\n",
        ] {
            assert_eq!(at(path), None, "{path}");
        }
    }

    #[test]
    fn the_slot_of_a_job_has_no_part_of_other_names() {
        for (name, slot) in [
            (
                "condor_var_lib_condor_execute_slot1_1@slotnode",
                "slot1_1@slotnode",
            ),
            (
                "condor_var_lib_condor_execute_slot1_1@n1-slot2",
                "slot1_1@n1-slot2",
            ),
            ("condor_slots_slot2_execute_slot1@slot3", "slot1@slot3"),
            ("condor_execute_slot1_1@slot2@n1", "slot1_1@slot2@n1"),
            ("condor_scratch_slot12", "slot12"),
            ("condor_slots_x", "condor_slots_x"),
        ] {
            let groups = format!("0::/system.slice/condor.service/htcondor/{name}");
            let job = BatchJob::from_control_groups(&groups).unwrap();
            assert_eq!(job.to_string(), format!("htcondor {slot}"));
        }
    }

    #[test]
    fn variables_have_the_names_of_jobs() {
        let name = |variables: &[(&str, &str)]| {
            let variables = variables.iter();
            let environ = variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let job = BatchJob::from_environment(&environ.collect());
            job.map(|job| job.to_string())
        };
        for (variables, expected) in [
            (&[("PBS_JOBID", "7[1].server")][..], "pbs 7[1].server?"),
            (&[("LSB_JOBID", "7"), ("LSB_JOBINDEX", "0")], "lsf 7?"),
            (&[("LSB_JOBID", "7"), ("LSB_JOBINDEX", "2")], "lsf 7[2]?"),
            (&[("JOB_ID", "7"), ("SGE_TASK_ID", "undefined")], "sge 7?"),
            (&[("JOB_ID", "7"), ("SGE_TASK_ID", "2")], "sge 7.2?"),
            (&[("_CONDOR_SLOT", "slot1_1@n1")], "htcondor slot1_1@n1?"),
            (&[("FLUX_JOB_ID", "ƒ2oLkTLb")], "flux ƒ2oLkTLb?"),
            (&[("SLURM_JOB_ID", "7")], "slurm 7?"),
            (&[("COBALT_JOBID", "job=7")], "cobalt job=7?"),
        ] {
            assert_eq!(name(variables).as_deref(), Some(expected), "{variables:?}");
        }
        let long = "7".repeat(129);
        for nothing in ["", "7 8", "\u{1b}[2J", "7\n", "../x", &long] {
            assert_eq!(name(&[("PBS_JOBID", nothing)]), None, "{nothing:?}");
        }
        assert_eq!(name(&[("JOB_ID", "7")]), None);
    }

    #[test]
    fn login_sessions_and_services_are_no_jobs() {
        for groups in [
            "",
            "0::/",
            "0::/user.slice/user-1000.slice/session-3.scope",
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/vte-spawn-7.scope",
            "0::/system.slice/slurmd.service",
            "0::/system.slice/slurmstepd.scope/system",
            "0::/system.slice/pbs.service",
            "0::/system.slice/condor.service",
            "0::/system.slice/gitlab-runner.service/job_7",
            "4:memory:/docker/0123",
        ] {
            assert_eq!(job(groups, &[]), None, "{groups}");
        }
    }

    #[test]
    fn without_groups_the_ids_of_jobs_count() {
        let names = JOB_ID_VARIABLES.into_iter();
        for name in names {
            let [one, other] = ["7", "8"].map(|id| job("0::/", &[(name, id)]));
            assert!(one.is_some() && one != other, "{name}");
        }
        let task = ("SGE_TASK_ID", "undefined");
        let [one, other] = ["7", "8"].map(|id| job("0::/", &[("JOB_ID", id), task]));
        assert!(one.is_some() && one != other);
        assert_eq!(job("0::/", &[("JOB_ID", "7")]), None);
        assert_eq!(job("0::/", &[("PBS_JOBID", "")]), None);
        // A job of Flux in a job of LSF.
        let inner = |flux| job("0::/", &[("LSB_JOBID", "7"), ("FLUX_JOB_ID", flux)]);
        assert_ne!(inner("f1"), inner("f2"));
        let nowhere = Host::at(Path::new("/nowhere"));
        assert!(nowhere.own_job(&[], |_| None).is_none());
    }
}
