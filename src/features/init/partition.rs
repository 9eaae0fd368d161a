//! Ways to partition a GPU for a number of jobs, to choose from.

use std::cmp::Reverse;
use std::fmt::{self, Write as _};

use console::style;

use super::first_profile::{EmptyNode, GpuGroup, GroupSupply, Supply, gib_at_most};
use crate::geometry::{
    Fitting, GpuInstanceProfile, InstanceKind, Request, SliceMap, fittings, slice_map,
};
use crate::host::ranges;
use crate::render::format::{count, kept_together, map_for_stderr, wrapped};

/// Instances that fit on one GPU together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition<'a> {
    /// Each profile with the number of its instances, the largest first.
    pub counts: Vec<(&'a GpuInstanceProfile, u32)>,
}

/// The aim that a partition is the best for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// The smallest instance is as large as possible, and little of the GPU stays unused.
    Even,
    /// All instances are of one profile.
    Alike,
    OneLarge,
    ManySizes,
    Most,
}

impl Aim {
    pub const ALL: [Self; 5] = [
        Self::Even,
        Self::Alike,
        Self::OneLarge,
        Self::ManySizes,
        Self::Most,
    ];
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Even => "as even as possible",
            Self::Alike => "all of one size",
            Self::OneLarge => "one as large as possible",
            Self::ManySizes => "many sizes",
            Self::Most => "as many as possible",
        })
    }
}

/// Returns every way to partition a GPU into instances with so much memory each. Profiles with attributes, such as
/// `+me`, are left out: there is a plain one of each size.
pub fn partitions(offered: &[GpuInstanceProfile], least_memory_mib: u64) -> Vec<Partition<'_>> {
    let mut usable: Vec<&GpuInstanceProfile> = offered
        .iter()
        .filter(|profile| profile.name.is_plain() && profile.memory_mib >= least_memory_mib)
        .collect();
    usable.sort_by_key(|profile| Reverse((profile.slices, profile.memory_mib)));
    let kinds: Vec<InstanceKind<'_>> = usable
        .into_iter()
        .map(|profile| InstanceKind {
            profile,
            at: None,
            most: profile.most,
        })
        .collect();
    fittings(&kinds)
        .into_iter()
        .filter(|fitting| !fitting.requests.is_empty())
        .map(|Fitting { counts, .. }| Partition { counts })
        .collect()
}

/// Returns the partition with at least so many instances that is the best for an aim; `None` if none has as many.
pub fn best_for<'p, 'a>(
    aim: Aim,
    all: &'p [Partition<'a>],
    instances: u32,
) -> Option<&'p Partition<'a>> {
    all.iter()
        .filter(|one| one.instances() >= instances)
        .filter(|one| aim != Aim::Alike || one.counts.len() == 1)
        .max_by_key(|one| (one.figure(aim), one.score()))
}

impl Partition<'_> {
    /// Returns the number of instances.
    pub fn instances(&self) -> u32 {
        self.counts.iter().map(|(_, count)| count).sum()
    }

    /// Returns the figure that is to be large for this aim, before the score counts.
    fn figure(&self, aim: Aim) -> u32 {
        match aim {
            Aim::Even | Aim::Alike => 0,
            Aim::OneLarge => self.most_slices(),
            Aim::ManySizes => self.sizes(),
            Aim::Most => self.instances(),
        }
    }

    /// Returns the memory of the instance that has the least, in MiB.
    pub fn least_memory_mib(&self) -> u64 {
        let memory = self.counts.iter().map(|(profile, _)| profile.memory_mib);
        memory.min().unwrap_or(0)
    }

    /// Returns the map of a GPU with these instances, in the places that the planner chooses on an empty one.
    pub fn map(&self, offered: &[GpuInstanceProfile]) -> Option<SliceMap> {
        let requests = self.counts.iter().flat_map(|(profile, count)| {
            let request = Request {
                profile: profile.id,
                at: None,
                entry: 0,
            };
            std::iter::repeat_n(request, *count as usize)
        });
        slice_map(offered, &requests.collect::<Vec<_>>())
    }

    /// The order of partitions for jobs that are alike; more is better. By slices, since SMs are not published for every
    /// model.
    fn score(&self) -> impl Ord + use<> {
        let slices = self.counts.iter().map(|(profile, _)| profile.slices);
        (
            slices.min(),
            self.least_memory_mib(),
            self.sum(|profile| profile.slices.into()),
            Reverse(self.instances()),
            Reverse(self.counts.len()),
            Reverse(self.most_slices()),
            self.sum(|profile| profile.memory_mib),
        )
    }

    /// Returns the sum over all instances.
    fn sum(&self, of_one: fn(&GpuInstanceProfile) -> u64) -> u64 {
        self.counts
            .iter()
            .map(|(profile, count)| of_one(profile) * u64::from(*count))
            .sum()
    }

    fn most_slices(&self) -> u32 {
        let slices = self.counts.iter().map(|(profile, _)| profile.slices);
        slices.max().unwrap_or(0)
    }

    /// The number of different sizes. The largest come first, so that equal ones are neighbours.
    fn sizes(&self) -> u32 {
        let sizes = self
            .counts
            .chunk_by(|(a, _), (b, _)| a.slices == b.slices)
            .count();
        u32::try_from(sizes).unwrap_or(u32::MAX)
    }
}

/// `3 × 2g.20gb + 1g.20gb`
impl fmt::Display for Partition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, (profile, count)) in self.counts.iter().enumerate() {
            let plus = if nth == 0 { "" } else { " + " };
            match count {
                1 => write!(f, "{plus}{}", profile.name)?,
                _ => write!(f, "{plus}{count} × {}", profile.name)?,
            }
        }
        Ok(())
    }
}

/// Formats the GPUs that a profile is made for.
pub fn gpus(node: &EmptyNode) -> String {
    node.groups.iter().fold(String::new(), |mut text, group| {
        let heading = style(heading(group, &group.indices)).bold().for_stderr();
        let room = match (group.has_mig, group.profiles.is_empty()) {
            (false, _) => "no MIG: it can stay whole, or is left out".to_owned(),
            (true, true) => {
                "no profiles known: this driver lists them only while MIG is on".to_owned()
            }
            (true, false) => {
                let all = partitions(&group.profiles, 0);
                let most = all.iter().map(Partition::instances).max();
                let each = if group.indices.len() == 1 {
                    ""
                } else {
                    " each"
                };
                // Of a real GPU, the driver is asked first.
                let by = if group.is_from_catalog && node.is_real {
                    " by the catalog: this driver lists them only while MIG is on"
                } else {
                    ""
                };
                format!(
                    "up to {}{each}{by}",
                    count(most.unwrap_or(0) as usize, "device")
                )
            }
        };
        let memory = group
            .memory_mib
            .map(|mib| format!("  {} GiB", gib_at_most(mib)));
        let _ = writeln!(text, "{heading}{}  {room}", memory.unwrap_or_default());
        text
    })
}

/// Formats the choices for GPUs of one product, with the number of each.
pub fn describe(supply: &GroupSupply<'_>, choices: &[(Aim, Partition<'_>)]) -> String {
    let group = supply.group;
    let heading = style(heading(group, &supply.indices)).bold().for_stderr();
    let mut text = format!("\n{heading}\n");
    for (nth, (aim, partition)) in choices.iter().enumerate() {
        let each = partition.instances();
        let mut all = count(supply.devices(each) as usize, "device");
        if supply.indices.len() != 1 {
            let _ = write!(all, ", {each} on each GPU");
        }
        let recommended = if nth == 0 { " (recommended)" } else { "" };
        let title = style(format!("{}  {aim}{recommended}", nth + 1)).bold();
        let _ = writeln!(text, "  {}: {all}", title.for_stderr());
        if let Some(map) = partition.map(&group.profiles) {
            let _ = writeln!(text, "     {}", map_for_stderr(&map));
        }
        let parts: Vec<String> = partition
            .counts
            .iter()
            .map(|(profile, count)| {
                let facts = group.describe(profile);
                kept_together(&format!("{count} × {} ({facts})", profile.name))
            })
            .collect();
        for line in wrapped(&parts.join(" + "), 74) {
            let _ = writeln!(text, "     {line}");
        }
    }
    text
}

/// Formats the partitions with the most devices, below an error.
pub fn fullest(supply: &Supply<'_>) -> String {
    let lines = supply.groups.iter().filter_map(|supply| {
        let (_, partition) = supply.choices(supply.most()).into_iter().next()?;
        let map = partition.map(&supply.group.profiles)?;
        let heading = heading(supply.group, &supply.indices);
        Some(format!("\n  {heading}: {partition}\n  {map}"))
    });
    lines.collect()
}

/// `GPU 0-3  NVIDIA A100-SXM4-80GB`
fn heading(group: &GpuGroup, indices: &[u32]) -> String {
    format!("GPU {}  {}", ranges(indices), group.product)
}
