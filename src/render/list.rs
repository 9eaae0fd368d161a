use std::fmt::Write as _;

use console::style;

use super::format::{gib, indented, or};
use super::table::{Column, Table};
use crate::node::{Device, Gpu, Node};
use crate::nvml::GpuInstanceReading;

/// Formats the GPUs, and under each its slice map and MIG devices.
pub fn text(node: &Node, shown: &[(&Gpu, Vec<Device>)], profiles: bool, width: usize) -> String {
    let mut out = String::new();
    if node.gpus.is_empty() {
        let _ = writeln!(out, "The driver ({}) shows no GPU.", node.driver);
    }
    for (position, (gpu, shown)) in shown.iter().enumerate() {
        if position > 0 {
            out.push('\n');
        }
        let _ = writeln!(out, "{}", heading(gpu));
        if gpu.in_mig_mode() {
            let _ = writeln!(out, "  {}", gpu.slice_map());
            if let Some(why) = &gpu.hidden {
                let _ = writeln!(out, "  instances are hidden: {why}");
            }
            out.push_str(&indented(&devices(node, shown, width.saturating_sub(2))));
            out.push_str(&without_compute(gpu));
        }
        if profiles {
            out.push_str(&indented(&offers(gpu, width.saturating_sub(2))));
        }
    }
    for hidden in &node.hidden {
        let _ = writeln!(out, "\nnot seen: {hidden}");
    }
    out
}

fn heading(gpu: &Gpu) -> String {
    let memory = or(gpu.memory.map(|memory| gib(memory.total)), "hidden");
    let on = |on| if on { "on" } else { "off" };
    let mig = match gpu.mig {
        None => "no MIG".to_owned(),
        Some(mode) if mode.current == mode.pending => format!("MIG {}", on(mode.current)),
        Some(mode) => {
            let (now, then) = (on(mode.current), on(mode.pending));
            format!("MIG {now}, {then} after a reset")
        }
    };
    let first = format!("GPU {}  {}  {memory} GiB  {mig}", gpu.index, gpu.product);
    format!("{}\n  {}  {}", style(first).bold(), gpu.uuid, gpu.pci)
}

fn devices(node: &Node, shown: &[Device], width: usize) -> String {
    let mut table = Table::new(vec![
        Column::left("NAME", 0),
        Column::left("PROFILE", 0),
        Column::left("GI/CI", 1),
        Column::left("AT", 0),
        Column::right("SMS", 3),
        Column::right("GIB", 4),
        Column::left("UUID", 0),
    ]);
    for device in shown {
        if let Some(part) = &device.part {
            table.row(vec![
                node.name_of(device),
                part.title.clone(),
                format!("{}/{}", part.gpu_instance, part.compute_instance),
                part.placement.to_string(),
                part.multiprocessors.to_string(),
                gib(part.memory_mib << 20),
                device.uuid.clone(),
            ]);
        }
    }
    if table.is_empty() {
        return String::new();
    }
    table.within(width, "--json")
}

/// Returns the GPU instances without a compute instance: CUDA does not see them, and they use slices.
fn without_compute(gpu: &Gpu) -> String {
    let empty = gpu.instances.iter();
    let empty = empty.filter(|instance| instance.compute.is_empty());
    let line = |instance: &GpuInstanceReading| {
        let name = match gpu.profile(instance.profile) {
            Some(profile) => profile.name.to_string(),
            None => format!("profile {}", instance.profile),
        };
        let (id, placement) = (instance.id, instance.placement);
        format!(
            "  GPU instance {id} ({name} at {placement}) has no compute instance: CUDA does not see it\n"
        )
    };
    empty.map(line).collect()
}

fn offers(gpu: &Gpu, width: usize) -> String {
    if gpu.mig.is_some() && gpu.profiles.is_empty() {
        return "This driver lists profiles only while MIG is on.\n".to_owned();
    }
    let mut table = Table::new(vec![
        Column::left("OFFERS", 0),
        Column::right("ID", 2),
        Column::right("SMS", 1),
        Column::right("GIB", 1),
        Column::right("MOST", 0),
        Column::right("FREE", 0),
        Column::left("PLACEMENTS", 0),
    ]);
    for profile in &gpu.profiles {
        let placements = &profile.placements;
        let starts: Vec<String> = placements.iter().map(|at| at.start.to_string()).collect();
        let size = placements.first().map_or(0, |at| at.size);
        table.row(vec![
            profile.name.to_string(),
            profile.id.to_string(),
            profile.multiprocessors.to_string(),
            gib(profile.memory_mib << 20),
            profile.most.to_string(),
            or(profile.free, "?"),
            format!("{{{}}}:{size}", starts.join(",")),
        ]);
    }
    if table.is_empty() {
        return String::new();
    }
    table.within(width, "--json")
}
