//! The choice of a device for a program: one that is free, or by the rank of the process among those of an MPI program or
//! Slurm step on this node.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use clap::{Args, ValueEnum};
use regex::Regex;
use thiserror::Error;

use super::portion::{Portion, all_memory, free_memory, within_limit};
use crate::client::{NoAccess, check_client_access, check_user, usable_gpus, visible_devices};
use crate::commands::no_daemon_hint;
use crate::failure::{ExitStatus, Failure};
use crate::geometry::ProfileName;
use crate::host::{Environment, Uid, environment_variable, join_words};
use crate::node::{Device, Node, Served};
use crate::settings::MemoryLimit;
use crate::state::{DeviceKey, DeviceRecord};

/// The group of the options that choose a device.
pub const CHOICE: &str = "Choosing a device";

/// The devices that a program takes.
#[derive(Args, Clone, Debug, Default)]
pub struct WantedDevices {
    /// Their names; all if there are none.
    #[arg(skip)]
    names: Vec<String>,
    /// Choose only devices of this instance profile
    #[arg(long, value_name = "NAME", requires = "choosing", help_heading = CHOICE)]
    profile: Option<ProfileName>,
    /// Choose only devices with this much available memory
    #[arg(
        long,
        help_heading = CHOICE,
        value_name = "SIZE",
        requires = "choosing",
        conflicts_with = "by_rank"
    )]
    min_memory: Option<MemoryLimit>,
    /// Choose only GPUs whose product name matches REGEX
    #[arg(
        long,
        help_heading = CHOICE,
        value_name = "REGEX",
        value_parser = pattern,
        requires = "choosing",
        conflicts_with = "by_rank"
    )]
    product: Option<Regex>,
}

/// Reads a regular expression. Its errors have a picture of the place, and then the reason.
fn pattern(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|error| {
        let error = error.to_string();
        let reason = error.rsplit("error: ").next().unwrap_or_default();
        format!("not a regular expression: {reason}")
    })
}

/// No device takes a program now.
#[derive(Debug, Error)]
#[error("{}", self.text())]
pub struct NoneFree {
    /// The reason of each device that would do.
    pub reasons: Vec<NoAccess>,
    /// The joint devices that would do if they were named.
    pub unnamed_joint: Vec<String>,
    /// The instance profiles of the devices with daemons, if one was asked for that none of them has.
    profiles: BTreeSet<String>,
    /// True if no daemon runs on the node, as far as is known.
    pub is_without_daemons: bool,
    /// The option that was to choose.
    option: &'static str,
}

impl Failure for NoneFree {
    fn hint(&self) -> Option<String> {
        match self.reasons.as_slice() {
            [NoAccess::Reserved { .. }] => {
                Some("run `mig-mps status` to see the devices and whom they serve".to_owned())
            }
            [only] => only.hint(),
            _ if self.is_temporary() => Some("use --wait 5m to wait for a device".to_owned()),
            [] if self.is_without_daemons => Some(no_daemon_hint()),
            [] if !self.unnamed_joint.is_empty() => {
                let name = &self.unnamed_joint[0];
                let option = self.option;
                Some(format!(
                    "select it: `mig-mps run {option} {name} -- PROGRAM`"
                ))
            }
            [] if !self.profiles.is_empty() => {
                let profiles: Vec<String> = self.profiles.iter().cloned().collect();
                let profiles = profiles.join(", ");
                Some(format!(
                    "use --profile with one of the sizes on this node: {profiles}"
                ))
            }
            [] => Some("run `mig-mps status` to see the devices".to_owned()),
            [first, others @ ..] if others.iter().all(|other| other.hint() == first.hint()) => {
                first.hint()
            }
            _ => Some("run `mig-mps status` to see the state of each device".to_owned()),
        }
    }
}

/// The most reasons that a message names.
const MAX_REASONS: usize = 8;

impl NoneFree {
    /// True if it ends when other programs do.
    pub fn is_temporary(&self) -> bool {
        self.reasons.iter().any(NoAccess::is_temporary)
    }

    fn text(&self) -> String {
        let mut lines = vec![match self.reasons.len() {
            0 => return self.text_without_reasons(),
            1 => return self.reasons[0].to_string(),
            count if self.is_temporary() => {
                format!("none of {count} devices accepts a program now:")
            }
            count => format!("none of {count} devices accepts the program:"),
        }];
        for reason in self.reasons.iter().take(MAX_REASONS) {
            lines.push(format!("  {reason}"));
        }
        if self.reasons.len() > MAX_REASONS {
            lines.push(format!("  and {} others", self.reasons.len() - MAX_REASONS));
        }
        lines.join("\n")
    }

    fn text_without_reasons(&self) -> String {
        let devices = match self.unnamed_joint.as_slice() {
            [] => return "no device with a daemon matches".to_owned(),
            [only] => format!("the joint device {only}"),
            several => format!("one of the joint devices {}", join_words(several, "and")),
        };
        format!("no device on a single GPU matches; select {devices} by name")
    }
}

/// Returns the devices that would do and take a program of the user now: those that are for this user alone first, then those
/// with the fewest clients, then those that give a program the most memory.
pub fn free_devices<'n>(
    node: &'n Node,
    wanted: &WantedDevices,
    environment: &Environment,
) -> Result<Vec<&'n Served>, NoneFree> {
    let user = environment.caller;
    let mut free = Vec::new();
    let mut reasons = Vec::new();
    let mut unnamed_joint = Vec::new();
    // A variable of the caller may list devices that would do: the others are another job's.
    let listed = visible_devices(node, environment_variable).unwrap_or_default();
    let is_listed = |device: &Device| listed.iter().any(|one| one.key == device.key);
    let is_wanted = |device: &Device| {
        let served = device.served.as_ref();
        served.is_some_and(|served| wanted.matches_device(node, served))
    };
    let is_one_listed = node
        .devices
        .iter()
        .any(|device| is_wanted(device) && is_listed(device));
    for device in &node.devices {
        let Some(served) = &device.served else {
            continue;
        };
        if is_one_listed && !is_listed(device) {
            continue;
        }
        if !wanted.matches_device(node, served) {
            if wanted.names.is_empty() && wanted.matches_if_named(node, served) {
                unnamed_joint.push(served.record.name.clone());
            }
            continue;
        }
        // If the caller may use no GPU of the device, the start of the program is refused later.
        let gpus = usable_gpus(node, &served.record, environment_variable).unwrap_or_default();
        let portion = Portion::for_device(node, device, served, &gpus);
        // A device that is too small is never waited for, whatever keeps the program from it now.
        match wanted
            .check_size(node, device, served, &gpus)
            .and_then(|()| check_client_access(served, user, &gpus))
            .and_then(|()| wanted.check_memory(node, device, served, &gpus))
        {
            Ok(()) => {
                let is_shared = served.record.only_user() != Some(user);
                let clients = served.clients.as_slice().len();
                let (memory, sms) = (Reverse(portion.memory), Reverse(portion.multiprocessors));
                free.push(((is_shared, clients, memory, sms), served));
            }
            Err(reason) => reasons.push(reason.during_change(node)),
        }
    }
    if free.is_empty() {
        return Err(NoneFree {
            reasons,
            unnamed_joint,
            profiles: wanted.other_profiles(node),
            is_without_daemons: node.has_no_daemons(),
            option: "--any",
        });
    }
    // The node's order of names decides between equals.
    free.sort_by_key(|(rank, _)| *rank);
    Ok(free.into_iter().map(|(_, served)| served).collect())
}

impl WantedDevices {
    /// The same among the devices with these names.
    #[must_use]
    pub fn with_names(&self, names: Vec<String>) -> Self {
        Self {
            names,
            ..self.clone()
        }
    }

    /// Refuses a device that is too small for the program.
    fn check_size(
        &self,
        node: &Node,
        device: &Device,
        served: &Served,
        gpus: &[usize],
    ) -> Result<(), NoAccess> {
        let all = within_limit(served, all_memory(node, device, gpus));
        match (self.min_memory, all) {
            (Some(wanted), Some(all)) if all < wanted.bytes() => {
                let free = within_limit(served, free_memory(node, device, gpus));
                Err(little_memory_error(
                    served,
                    free.unwrap_or(all),
                    wanted,
                    false,
                ))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a device that gives a program less memory than is wanted now.
    fn check_memory(
        &self,
        node: &Node,
        device: &Device,
        served: &Served,
        gpus: &[usize],
    ) -> Result<(), NoAccess> {
        let Some(wanted) = self.min_memory else {
            return Ok(());
        };
        match within_limit(served, free_memory(node, device, gpus)) {
            Some(free) if free >= wanted.bytes() => Ok(()),
            // The program fits there, or its size is hidden.
            Some(free) => {
                let is_passing = all_memory(node, device, gpus).is_some();
                Err(little_memory_error(served, free, wanted, is_passing))
            }
            None => {
                let name = describe_memory_of(served);
                Err(NoAccess::HiddenMemory { name })
            }
        }
    }

    /// Returns the instance profiles of the node's devices, if none is the wanted one.
    fn other_profiles(&self, node: &Node) -> BTreeSet<String> {
        let Some(wanted) = &self.profile else {
            return BTreeSet::new();
        };
        if node
            .served()
            .any(|served| has_profile(&served.record, wanted))
        {
            return BTreeSet::new();
        }
        node.served()
            .filter_map(|served| served.record.profile.clone())
            .collect()
    }

    /// True but for the free memory, which records do not tell.
    fn matches_device(&self, node: &Node, served: &Served) -> bool {
        let record = &served.record;
        // A joint device is for programs that use several GPUs: nobody gets one who has not named it.
        let is_meant = match self.names.as_slice() {
            [] => !record.key.is_joint(),
            names => names.contains(&record.name),
        };
        is_meant && self.matches_if_named(node, served)
    }

    /// True for a device of the wanted profile and product.
    fn matches_if_named(&self, node: &Node, served: &Served) -> bool {
        let record = &served.record;
        self.profile
            .as_ref()
            .is_none_or(|profile| has_profile(record, profile))
            && self.product.as_ref().is_none_or(|product| {
                node.gpu_with_uuid(&record.key.gpu)
                    .is_some_and(|gpu| product.is_match(&gpu.product))
            })
    }
}

fn little_memory_error(
    served: &Served,
    free: u64,
    wanted: MemoryLimit,
    is_passing: bool,
) -> NoAccess {
    NoAccess::LittleMemory {
        name: describe_memory_of(served),
        mib: free >> 20,
        wanted: wanted.to_string(),
        is_limited: within_limit(served, Some(u64::MAX)) < Some(wanted.bytes()),
        is_passing,
    }
}

/// `device trainer`, `a GPU of device trainers`
fn describe_memory_of(served: &Served) -> String {
    let record = &served.record;
    let name = format!("device {}", record.name);
    if record.key.is_joint() {
        return format!("a GPU of {name}");
    }
    name
}

/// True if the device has this profile, whose name may be the short one.
fn has_profile(record: &DeviceRecord, wanted: &ProfileName) -> bool {
    let own: Option<ProfileName> = record.profile.as_deref().and_then(|own| own.parse().ok());
    own.is_some_and(|own| own == *wanted || own.to_short() == *wanted)
}

/// Returns the recorded devices that would do and are for the user, without a view of their state: every rank of a program
/// finds the same ones.
pub fn devices_for<'n>(node: &'n Node, wanted: &WantedDevices, user: Uid) -> Vec<&'n Served> {
    node.served()
        .filter(|served| wanted.min_memory.is_none() && wanted.matches_device(node, served))
        .filter(|served| check_user(served, user).is_ok())
        .collect()
}

/// Returns the error of ranks for which there are only joint devices, if the user may use one: such a device must be named.
pub fn check_not_only_joint(
    node: &Node,
    wanted: &WantedDevices,
    user: Uid,
) -> Result<(), NoneFree> {
    let unnamed = node.served().filter(|served| {
        let is_joint = served.record.key.is_joint() && wanted.names.is_empty();
        is_joint && wanted.matches_if_named(node, served) && check_user(served, user).is_ok()
    });
    let unnamed_joint: Vec<String> = unnamed.map(|served| served.record.name.clone()).collect();
    if unnamed_joint.is_empty() {
        return Ok(());
    }
    Err(NoneFree {
        reasons: Vec::new(),
        unnamed_joint,
        profiles: BTreeSet::new(),
        is_without_daemons: false,
        option: "--by-rank",
    })
}

/// The variables that launchers set: the process's rank on its node, and the number of processes there. `torchrun` comes
/// first: `srun` and `mpirun` start one on each node, and it starts the ranks.
const LAUNCHERS: [(&str, &str); 7] = [
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
    ("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    ("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
];

/// The way in which ranks are spread over devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RankMapping {
    /// Ranks 0 and 1 share the first device, 2 and 3 the second, and so on
    Block,
    /// Rank 0 on the first device, 1 on the second, and so on, and again from the first
    Cycle,
    /// Each rank on a device near the CPUs to which it is bound
    Near,
}

/// The rank of a process on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalRank {
    pub rank: usize,
    /// The number of ranks on the node, if the launcher tells.
    pub size: Option<usize>,
}

/// A process has no device by its rank.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NoRank {
    #[error(
        "no launcher has set the rank of this process: none of {} is set",
        names()
    )]
    NotSet,
    #[error("{name} is \"{value}\", which is not a number")]
    NotANumber { name: &'static str, value: String },
    #[error(
        "--map block needs the number of ranks on this node, which the launcher does not provide"
    )]
    NoSize,
    #[error("no device for rank {rank}: {}", none_of(*all))]
    NoDevice { rank: usize, all: usize },
}

impl Failure for NoRank {
    fn status(&self) -> ExitStatus {
        ExitStatus::Usage
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NotSet => {
                "start the program with mpirun, srun or torchrun, or use --any instead of --by-rank"
            }
            Self::NotANumber { .. } => "start the program with mpirun, srun or torchrun",
            Self::NoSize => "use --map cycle",
            Self::NoDevice { all: 0, .. } => return Some(no_daemon_hint()),
            Self::NoDevice { .. } => "run `mig-mps status` to see the devices and their users",
        };
        Some(hint.to_owned())
    }
}

fn none_of(all: usize) -> String {
    match all {
        0 => "no device on this node has a daemon".to_owned(),
        1 => "the only device does not match the options or does not serve this user".to_owned(),
        _ => format!("none of the {all} devices matches the options and serves this user"),
    }
}

fn names() -> String {
    LAUNCHERS.map(|(rank, _)| rank).join(", ")
}

impl LocalRank {
    /// Reads the rank from the environment. The innermost launcher is asked first: `mpirun` may run within a Slurm step.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self, NoRank> {
        let (name, value, size) = LAUNCHERS
            .iter()
            .find_map(|(name, size)| Some((*name, variable(name)?, *size)))
            .ok_or(NoRank::NotSet)?;
        let rank = value
            .parse()
            .map_err(|_| NoRank::NotANumber { name, value })?;
        let size = variable(size).and_then(|size| leading_number(&size));
        Ok(Self {
            rank,
            size: size.filter(|size| *size > rank),
        })
    }

    /// Returns the number of ranks on the node if this is the first one, which speaks for all, and the launcher tells.
    pub fn ranks_if_first(self) -> Option<usize> {
        if self.rank == 0 { self.size } else { None }
    }

    /// True if two ranks get different MIG devices of one GPU among these devices, whatever their CPUs are.
    pub fn uses_parts_of_one_gpu(self, devices: &[&DeviceKey], map: RankMapping) -> bool {
        if map == RankMapping::Near {
            let gpus: BTreeSet<&str> = devices.iter().map(|key| key.gpu.as_str()).collect();
            return self.size.is_some_and(|size| size > gpus.len());
        }
        let used: BTreeSet<&DeviceKey> = (0..self.size.unwrap_or_default())
            .map(|rank| Self { rank, ..self })
            .filter_map(|rank| rank.device_index(devices.len(), devices.len(), map).ok())
            .map(|position| devices[position])
            .collect();
        let gpus: BTreeSet<&str> = used.iter().map(|key| key.gpu.as_str()).collect();
        gpus.len() < used.len()
    }

    /// Returns the position of the rank's device among `count`, which are chosen from `all`. CPUs are not looked at.
    pub fn device_index(self, count: usize, all: usize, map: RankMapping) -> Result<usize, NoRank> {
        let rank = self.rank;
        match (map, self.size) {
            _ if count == 0 => Err(NoRank::NoDevice { rank, all }),
            (RankMapping::Cycle | RankMapping::Near, _) => Ok(self.rank % count),
            (RankMapping::Block, Some(size)) => {
                // The product of two numbers may have twice their digits.
                let [rank, count, size] = [rank, count, size.max(count)].map(|n| n as u128);
                Ok(usize::try_from(rank * count / size).unwrap_or(0))
            }
            (RankMapping::Block, None) => Err(NoRank::NoSize),
        }
    }
}

/// `14`, and Slurm's `14(x2)`. Slurm's `4,3` names several nodes with different numbers, and not which is this one.
fn leading_number(text: &str) -> Option<usize> {
    let (number, rest) = text.split_at(
        text.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len()),
    );
    let is_one = rest.is_empty() || (rest.starts_with("(x") && !rest.contains(','));
    if is_one { number.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(variables: &[(&str, &str)]) -> Result<LocalRank, NoRank> {
        LocalRank::from_environment(|name| {
            let mut found = variables.iter().filter(|(known, _)| *known == name);
            found.next().map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn each_launcher_is_understood() {
        for (name, size) in LAUNCHERS {
            let read = rank(&[(name, "3"), (size, "8")]).unwrap();
            assert_eq!((read.rank, read.size), (3, Some(8)), "{name}");
        }
        let within_slurm = [("SLURM_LOCALID", "0"), ("OMPI_COMM_WORLD_LOCAL_RANK", "5")];
        assert_eq!(rank(&within_slurm).unwrap().rank, 5);
        let torchrun_within_slurm = [("SLURM_LOCALID", "0"), ("LOCAL_RANK", "3")];
        assert_eq!(rank(&torchrun_within_slurm).unwrap().rank, 3);
        let slurm = |size| rank(&[("SLURM_LOCALID", "1"), ("SLURM_STEP_TASKS_PER_NODE", size)]);
        assert_eq!(slurm("4(x2)").unwrap().size, Some(4));
        assert_eq!(slurm("4,3").unwrap().size, None);
        assert_eq!(slurm("2(x2),1").unwrap().size, None);
    }

    #[test]
    fn ranks_are_spread_over_devices() {
        let spread = |map, ranks: usize, devices| -> Vec<usize> {
            let at = |rank| LocalRank {
                rank,
                size: Some(ranks),
            };
            (0..ranks)
                .map(|rank| at(rank).device_index(devices, devices, map).unwrap())
                .collect()
        };
        assert_eq!(spread(RankMapping::Cycle, 5, 2), [0, 1, 0, 1, 0]);
        assert_eq!(spread(RankMapping::Block, 6, 3), [0, 0, 1, 1, 2, 2]);
        assert_eq!(spread(RankMapping::Block, 5, 2), [0, 0, 0, 1, 1]);
        let last = LocalRank {
            rank: usize::MAX - 1,
            size: Some(usize::MAX),
        };
        assert_eq!(last.device_index(7, 7, RankMapping::Block), Ok(6));
        // Fewer ranks than devices: one each.
        assert_eq!(spread(RankMapping::Block, 2, 7), [0, 1]);
    }

    #[test]
    fn a_rank_without_a_device_is_an_error() {
        assert_eq!(rank(&[]), Err(NoRank::NotSet));
        let wrong = rank(&[("PMI_LOCAL_RANK", "x")]).unwrap_err();
        assert_eq!(
            wrong.to_string(),
            "PMI_LOCAL_RANK is \"x\", which is not a number"
        );
        let unknown = rank(&[("PMI_LOCAL_RANK", "2")]).unwrap();
        assert_eq!(
            unknown.device_index(7, 7, RankMapping::Block),
            Err(NoRank::NoSize)
        );
        assert_eq!(
            unknown.device_index(0, 7, RankMapping::Cycle),
            Err(NoRank::NoDevice { rank: 2, all: 7 })
        );
        assert_eq!(unknown.device_index(2, 7, RankMapping::Cycle), Ok(0));
    }
}
