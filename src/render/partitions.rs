//! Ways to partition GPUs, to choose from.

use std::fmt::Write as _;

use console::style;

use super::format::{count, kept_together, wrapped};
use super::slice_map::map_for_stderr;
use crate::convert::{EmptyNode, GpuGroup, GroupSupply, Supply, gib_at_most};
use crate::geometry::{Aim, Partition, partitions};
use crate::host::ranges;

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
                let by = if group.is_from_catalog && node.is_real() {
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
        let all = count(supply.devices(each) as usize, "device");
        let all = match supply.indices.len() {
            1 => all,
            _ => format!("{all}, {each} on each GPU"),
        };
        let recommended = if nth == 0 { " (recommended)" } else { "" };
        let title = style(format!("{}  {aim}{recommended}", nth + 1)).bold();
        let _ = writeln!(text, "  {}: {all}", title.for_stderr());
        if let Some(map) = partition.map(&group.profiles) {
            let _ = writeln!(text, "     {}", map_for_stderr(&map));
        }
        let counts = partition.counts.iter();
        let parts = counts.map(|(profile, count)| {
            let facts = group.describe(profile);
            kept_together(&format!("{count} × {} ({facts})", profile.name))
        });
        let parts: Vec<String> = parts.collect();
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
