//! `list`: GPUs, devices and offers, as text and as JSON.

use std::fmt::Write as _;

use console::style;
use schemars::JsonSchema;
use serde::Serialize;

use super::device::DeviceDocument;
use super::format::{display_or, draw_map, format_gib, group_by, indent_lines, wrap_text};
use super::json::{VERSION, Version};
use super::table::{Column, Table, hidden_remark};
use crate::geometry::{GpuInstanceProfile, Placement};
use crate::host::format_gpus;
use crate::node::{self, Device, Gpu, Node, Unseen};
use crate::nvml::MigMode;

/// The columns of `--offers`, explained.
const LEGEND: &str = "ID: the profile's number in nvidia-smi. SMS, GIB: of one instance. MOST: on an empty GPU. \
                      FREE: how many more fit now. SLICES: where one can be.";

/// Formats the GPUs, with their slice maps and MIG devices. Identical GPUs are shown together.
pub fn render(node: &Node, shown: &[(&Gpu, Vec<&Device>)], profiles: bool, width: usize) -> String {
    let mut out = String::new();
    if node.gpus.is_empty() && node.lost_gpus().next().is_none() {
        let _ = writeln!(out, "The driver ({}) shows no GPU.", node.driver);
    }
    let cards = shown
        .iter()
        .map(|(gpu, devices)| Card::new(node, gpu, devices, profiles));
    let groups = group_by(cards, |a, b| {
        a.texts == b.texts && a.offers == b.offers && a.devices.is_empty() == b.devices.is_empty()
    });
    // One table of each kind: its columns are the same for every GPU.
    let room = width.saturating_sub(2);
    let (mut offers, mut devices) = (new_offer_table(), new_device_table());
    for group in &groups {
        group[0]
            .offers
            .iter()
            .for_each(|row| offers.add_row(row.clone()));
        device_rows(group).for_each(|row| devices.add_row(row));
    }
    let (mut offers, mut devices) = (offers.fit(room), devices.fit(room));
    for (position, group) in groups.iter().enumerate() {
        if position > 0 {
            out.push('\n');
        }
        let [about, geometry, without_compute] = &group[0].texts;
        let indices: Vec<u32> = group.iter().map(|card| card.gpu.index).collect();
        let title = format!("{}  {about}", format_gpus(&indices));
        let _ = writeln!(out, "{}", style(title).bold());
        out.push_str(&indent_lines(&render_identities(group)));
        out.push_str(&indent_lines(geometry));
        out.push_str(&indent_lines(&offers.take_rows(group[0].offers.len())));
        out.push_str(&indent_lines(
            &devices.take_rows(device_rows(group).count()),
        ));
        out.push_str(&indent_lines(without_compute));
    }
    out.push_str(&hidden_remark(&[&offers, &devices], width, "--json"));
    if profiles && shown.iter().any(|(gpu, _)| !gpu.profiles.is_empty()) {
        let _ = writeln!(out, "\n{}", wrap_text(LEGEND, width).join("\n"));
    }
    let hidden = not_listed(node);
    if !hidden.is_empty() && !out.is_empty() {
        out.push('\n');
    }
    for hidden in hidden {
        let _ = writeln!(out, "not seen: {hidden}");
    }
    out
}

/// Describes what could not be seen and is said of no GPU.
fn not_listed(node: &Node) -> Vec<String> {
    node.unseen
        .iter()
        .filter(|unseen| !matches!(unseen, Unseen::Instances { .. }))
        .map(Unseen::to_string)
        .collect()
}

/// A GPU to show.
struct Card<'a> {
    gpu: &'a Gpu,
    devices: &'a [&'a Device],
    /// The cells of its offers.
    offers: Vec<Vec<String>>,
    /// What it is, its geometry, and its instances without a device.
    texts: [String; 3],
}

impl<'a> Card<'a> {
    fn new(node: &Node, gpu: &'a Gpu, devices: &'a [&'a Device], profiles: bool) -> Self {
        let mut geometry = render_geometry(gpu);
        for joint in devices.iter().filter(|device| device.key.is_joint()) {
            let gpus = format_gpus(joint.gpu_indices());
            let _ = writeln!(geometry, "{} as one device: {}", gpus, joint.name);
        }
        let mut offers = Vec::new();
        if profiles {
            offers = offer_rows(gpu);
            if offers.is_empty() && gpu.mig.is_some() {
                geometry.push_str("This driver lists profiles only while MIG is on.\n");
            }
        }
        Self {
            gpu,
            devices,
            offers,
            texts: [
                describe_gpu(gpu),
                geometry,
                render_without_compute(node, gpu),
            ],
        }
    }
}

/// The UUID and PCI address of each GPU.
fn render_identities(group: &[Card<'_>]) -> String {
    let mut lines = String::new();
    for card in group {
        if group.len() > 1 {
            let _ = write!(lines, "{}  ", card.gpu.index);
        }
        let _ = writeln!(lines, "{}  {}", card.gpu.uuid, card.gpu.pci);
    }
    lines
}

fn render_geometry(gpu: &Gpu) -> String {
    if !gpu.in_mig_mode() {
        return String::new();
    }
    let hidden = gpu
        .hidden
        .as_ref()
        .map(|why| format!("instances are hidden: {why}\n"));
    format!(
        "{}\n{}",
        draw_map(&gpu.slice_map()),
        hidden.unwrap_or_default()
    )
}

/// Shows the memory of an instance; `-` if the GPU shares the machine's memory.
fn format_own_memory(mib: u64) -> String {
    match mib {
        0 => "-".to_owned(),
        _ => format_gib(mib << 20),
    }
}

fn describe_gpu(gpu: &Gpu) -> String {
    let memory = display_or(gpu.memory.map(|memory| format_gib(memory.total)), "hidden");
    let mig = match gpu.mig.map(|mode| (mode.current, mode.pending)) {
        None => "no MIG",
        Some((true, true)) => "MIG on",
        Some((false, false)) => "MIG off",
        Some((true, false)) => "MIG on, off after a reset",
        Some((false, true)) => "MIG off, on after a reset",
    };
    format!("{}  {memory} GiB  {mig}", gpu.product)
}

fn new_device_table() -> Table {
    Table::new(vec![
        Column::left_aligned("NAME", 0),
        Column::left_aligned("PROFILE", 0),
        Column::left_aligned("GI/CI", 5),
        Column::left_aligned("AT", 3),
        Column::right_aligned("SMS", 2),
        Column::right_aligned("GIB", 1),
        Column::left_aligned("UUID", 4),
    ])
}

/// Returns the cells of the MIG devices on these GPUs.
fn device_rows(group: &[Card<'_>]) -> impl Iterator<Item = Vec<String>> {
    group
        .iter()
        .flat_map(|card| card.devices)
        .filter_map(|device| {
            let part = device.part.as_ref()?;
            Some(vec![
                device.name.clone(),
                part.title.clone(),
                format!("{}/{}", part.gpu_instance, part.compute_instance),
                part.placement.format_range(),
                part.multiprocessors.to_string(),
                format_own_memory(part.memory_mib),
                device.uuid.clone(),
            ])
        })
}

/// Returns the GPU instances without a compute instance: CUDA does not see them, and they use slices.
fn render_without_compute(node: &Node, gpu: &Gpu) -> String {
    let mut lines = String::new();
    if !gpu.in_mig_mode() {
        return lines;
    }
    for instance in gpu.instances.iter().filter(|one| one.compute.is_empty()) {
        let name = gpu.instance_name(instance);
        let _ = if node.belongs_to_virtual_machine(gpu, instance) {
            writeln!(
                lines,
                "{name} belongs to a virtual machine, so mig-mps does not change it"
            )
        } else {
            writeln!(
                lines,
                "{name} has no compute instance: CUDA does not see it"
            )
        };
    }
    lines
}

fn new_offer_table() -> Table {
    Table::new(vec![
        Column::left_aligned("OFFERS", 0),
        Column::right_aligned("ID", 3),
        Column::right_aligned("SMS", 2),
        Column::right_aligned("GIB", 1),
        Column::right_aligned("MOST", 0),
        Column::right_aligned("FREE", 0),
        Column::left_aligned("SLICES", 0),
    ])
}

/// Returns the cells of the profiles that a GPU offers.
fn offer_rows(gpu: &Gpu) -> Vec<Vec<String>> {
    let rows = gpu.profiles.iter().map(|profile| {
        let places: Vec<String> = profile
            .placements
            .iter()
            .map(|at| at.format_range())
            .collect();
        vec![
            profile.name.to_string(),
            profile.id.to_string(),
            display_or(profile.multiprocessors, "?"),
            format_own_memory(profile.memory_mib),
            profile.most.to_string(),
            display_or(profile.free, "?"),
            places.join(", "),
        ]
    });
    rows.collect()
}

/// The output of `mig-mps list --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "list")]
pub struct ListDocument {
    version: Version,
    /// The driver's version.
    driver: String,
    /// The GPUs, by index.
    gpus: Vec<ListedGpu>,
    /// The facts that are hidden from the caller, as sentences.
    hidden: Vec<String>,
}

/// A GPU.
#[derive(Debug, Serialize, JsonSchema)]
struct ListedGpu {
    /// NVML's index, in PCI order.
    index: u32,
    /// The UUID, `GPU-…`.
    uuid: String,
    /// The product name.
    product: String,
    /// The PCI address.
    pci: String,
    /// All device memory; null if hidden.
    memory_total_bytes: Option<u64>,
    /// Device memory in use; null if hidden.
    memory_used_bytes: Option<u64>,
    /// The MIG mode; null for a GPU without MIG.
    mig: Option<MigMode>,
    /// The number of placement units.
    placement_units: u32,
    /// The GPU instances.
    gpu_instances: Vec<ListedInstance>,
    /// The devices: MIG devices, or the whole GPU.
    devices: Vec<DeviceDocument>,
    /// The GPU instance profiles that it offers.
    profiles: Vec<GpuInstanceProfile>,
    /// The facts about it that are hidden from the caller, as sentences.
    hidden: Vec<String>,
}

/// A GPU instance.
#[derive(Debug, Serialize, JsonSchema)]
struct ListedInstance {
    /// Its id.
    gpu_instance_id: u32,
    /// The profile name; null if the GPU does not offer that profile.
    profile: Option<String>,
    /// The number of the profile.
    profile_id: u32,
    /// The placement.
    placement: Placement,
    /// The number of its compute instances.
    compute_instances: usize,
}

impl ListDocument {
    /// Describes these GPUs with these of their devices.
    pub fn from_node(node: &Node, shown: &[(&node::Gpu, Vec<&node::Device>)]) -> Self {
        Self {
            version: VERSION,
            driver: node.driver.clone(),
            gpus: shown
                .iter()
                .map(|(gpu, devices)| ListedGpu::from_gpu(gpu, devices))
                .collect(),
            hidden: not_listed(node),
        }
    }
}

impl ListedGpu {
    fn from_gpu(gpu: &node::Gpu, devices: &[&node::Device]) -> Self {
        Self {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            product: gpu.product.clone(),
            pci: gpu.pci.clone(),
            memory_total_bytes: gpu.memory.map(|memory| memory.total),
            memory_used_bytes: gpu.memory.map(|memory| memory.used),
            mig: gpu.mig,
            placement_units: gpu.placement_units(),
            gpu_instances: gpu
                .instances
                .iter()
                .map(|instance| ListedInstance {
                    gpu_instance_id: instance.id.0,
                    profile: gpu
                        .profile(instance.profile)
                        .map(|profile| profile.name.to_string()),
                    profile_id: instance.profile.0,
                    placement: instance.placement,
                    compute_instances: instance.compute.len(),
                })
                .collect(),
            devices: devices
                .iter()
                .map(|device| DeviceDocument::from_device(device))
                .collect(),
            profiles: gpu.profiles.clone(),
            hidden: gpu.hidden.iter().cloned().collect(),
        }
    }
}
