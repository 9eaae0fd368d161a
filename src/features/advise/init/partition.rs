//! The ways to partition a GPU that are offered for a number of jobs.

use std::cmp::Reverse;
use std::fmt::{self, Write as _};

use console::style;

use super::first_profile::{GroupSupply, Supply, device_facts};
use crate::geometry::{Partition, enumerate_partitions};
use crate::host::format_gpus;
use crate::plan::virtual_node::{EmptyNode, GpuGroup};
use crate::render::format::{
    draw_map_for_stderr, format_count, format_gib, keep_together, wrap_text,
};

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

    /// Returns the figure that is to be large for this aim, before the score counts.
    fn primary_score(self, partition: &Partition<'_>) -> u32 {
        match self {
            Self::Even | Self::Alike => 0,
            Self::OneLarge => partition.most_slices(),
            Self::ManySizes => distinct_sizes(partition),
            Self::Most => partition.instance_count(),
        }
    }
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

/// Returns the partition with at least so many instances that is the best for an aim; `None` if none has as many.
pub fn best_for<'p, 'a>(
    aim: Aim,
    all: &'p [Partition<'a>],
    instances: u32,
) -> Option<&'p Partition<'a>> {
    all.iter()
        .filter(|one| one.instance_count() >= instances)
        .filter(|one| aim != Aim::Alike || one.counts.len() == 1)
        .max_by_key(|one| (aim.primary_score(one), partition_score(one)))
}

/// The order of partitions for jobs that are alike; more is better. By slices, since SMs are not published for every
/// model.
fn partition_score(partition: &Partition<'_>) -> impl Ord + use<> {
    let counts = &partition.counts;
    let memory = counts
        .iter()
        .map(|(profile, count)| profile.memory_mib * u64::from(*count));
    (
        counts.iter().map(|(profile, _)| profile.slices).min(),
        partition.least_memory_mib(),
        partition.total_slices(),
        Reverse(partition.instance_count()),
        Reverse(counts.len()),
        Reverse(partition.most_slices()),
        memory.sum::<u64>(),
    )
}

/// Returns the number of different sizes. The largest come first, so that equal ones are neighbors.
fn distinct_sizes(partition: &Partition<'_>) -> u32 {
    let sizes = partition
        .counts
        .chunk_by(|(a, _), (b, _)| a.slices == b.slices)
        .count();
    u32::try_from(sizes).unwrap_or(u32::MAX)
}

/// Formats the GPUs that a profile is made for.
pub fn render_gpus(node: &EmptyNode) -> String {
    node.groups.iter().fold(String::new(), |mut text, group| {
        let heading = style(group_heading(group, &group.indices))
            .bold()
            .for_stderr();
        let room = match (group.has_mig, group.profiles.is_empty()) {
            (false, _) => "no MIG: it can stay whole, or is left out".to_owned(),
            (true, true) => {
                "no profiles known: this driver lists them only while MIG is on".to_owned()
            }
            (true, false) => {
                let all = enumerate_partitions(&group.profiles, 0);
                let most = all.iter().map(Partition::instance_count).max();
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
                    format_count(most.unwrap_or(0) as usize, "device")
                )
            }
        };
        let memory = group
            .memory_mib
            .map(|mib| format!("  {} GiB", format_gib(mib << 20)));
        let _ = writeln!(text, "{heading}{}  {room}", memory.unwrap_or_default());
        text
    })
}

/// Formats the choices for GPUs of one product, with the number of each.
pub fn render_choices(supply: &GroupSupply<'_>, choices: &[(Aim, Partition<'_>)]) -> String {
    let group = supply.group;
    let heading = style(group_heading(group, &supply.indices))
        .bold()
        .for_stderr();
    let mut text = format!("\n{heading}\n");
    for (nth, (aim, partition)) in choices.iter().enumerate() {
        let each = partition.instance_count();
        let mut all = format_count(supply.total_devices(each) as usize, "device");
        if supply.indices.len() != 1 {
            let _ = write!(all, ", {each} on each GPU");
        }
        let recommended = if nth == 0 { " (recommended)" } else { "" };
        let title = style(format!("{}  {aim}{recommended}", nth + 1)).bold();
        let _ = writeln!(text, "  {}: {all}", title.for_stderr());
        if let Some(map) = partition.to_slice_map(&group.profiles) {
            let _ = writeln!(text, "     {}", draw_map_for_stderr(&map));
        }
        let parts: Vec<String> = partition
            .counts
            .iter()
            .map(|(profile, count)| {
                let facts = device_facts(group, profile);
                keep_together(&format!("{count} × {} ({facts})", profile.name))
            })
            .collect();
        let unused = partition.clone().find_unused(&group.profiles);
        let usage = unused.map_or_else(String::new, |unused| format!("; {}", unused.usage()));
        for line in wrap_text(&(parts.join(" + ") + &usage), 74) {
            let _ = writeln!(text, "     {line}");
        }
    }
    text
}

/// Formats the partitions with the most devices, below an error.
pub fn render_fullest(supply: &Supply<'_>) -> String {
    let lines = supply.groups.iter().filter_map(|supply| {
        let (_, partition) = supply
            .partition_choices(supply.most_devices())
            .into_iter()
            .next()?;
        let map = partition.to_slice_map(&supply.group.profiles)?;
        let heading = group_heading(supply.group, &supply.indices);
        Some(format!("\n  {heading}: {partition}\n  {map}"))
    });
    lines.collect()
}

/// `GPUs 0-3  NVIDIA A100-SXM4-80GB`
fn group_heading(group: &GpuGroup, indices: &[u32]) -> String {
    format!("{}  {}", format_gpus(indices), group.product)
}
