//! The smallest hardware, as text and as JSON.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use console::style;
use schemars::JsonSchema;
use serde::Serialize;

use crate::geometry::{Placement, Segment, SliceMap};
use crate::host::ranges;
use crate::plan::virtual_node::{EmptyNode, GpuGroup};
use crate::profile::{Amount, Measurement, Wanted};
use crate::render::format::{count, escaped, figure, gib, grouped, hanging, map, shown_or};
use crate::render::json::{Report, VERSION, Version, as_seconds};
use crate::render::table::{Column, NONE, Table};

use super::advice::{Advice, AdvisedDevice, AdvisedGpu};

/// The output of `mig-mps advise --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "advise")]
pub struct AdviceDocument {
    version: Version,
    /// The GPUs that are used; those with the same devices together.
    gpus: Vec<GpusDocument>,
    /// The indices of the GPUs that are left over.
    unused: Vec<u32>,
    /// The compute slices of all devices; a whole GPU has all of its slices.
    slices: u32,
    /// The placement units of the largest free block on one of the GPUs that are used.
    largest_free_block: u32,
    /// True if nothing better exists: fewer GPUs, then fewer slices, then a larger free block.
    is_proven: bool,
    /// The number of GPUs that is needed whatever is chosen.
    least_gpus: u32,
    /// The number of slices that is needed on as many GPUs.
    least_slices: u32,
    /// The number of GPUs if each was one device; null if a program has no figures for that.
    undivided_gpus: Option<u32>,
    programs: Vec<ProgramDocument>,
    /// The profile that makes these devices.
    profile: String,
}

/// GPUs with the same devices.
#[derive(Debug, Serialize, JsonSchema)]
struct GpusDocument {
    indices: Vec<u32>,
    /// The model in the catalog.
    model: Option<String>,
    /// NVML's name.
    product: String,
    /// The slice map; null for a whole GPU.
    map: Option<SliceMap>,
    /// The same with the programs.
    #[serde(skip)]
    names: Option<SliceMap>,
    devices: Vec<DeviceDocument>,
}

/// A device.
#[derive(Debug, Serialize, JsonSchema)]
struct DeviceDocument {
    /// Its instance profile; null for a whole GPU.
    profile: Option<String>,
    /// Its programs, with the figures that each is expected to have.
    programs: Vec<FiguresDocument>,
}

/// Copies of a program on a device.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
struct FiguresDocument {
    program: String,
    copies: u32,
    /// The active thread percentage of each copy.
    active_thread_percentage: f64,
    /// True if other programs of the device have more: each copy needs `run --threads`.
    limits_itself: bool,
    /// The throughput of all copies together.
    rate: f64,
    /// The device memory of all copies together; null if it was not measured.
    memory_used_bytes: Option<u64>,
    /// Null if it was not measured.
    #[serde(rename = "latency_seconds", serialize_with = "as_seconds")]
    #[schemars(with = "Option<f64>")]
    latency_ms: Option<f64>,
    /// True if it was computed from two measurements.
    is_interpolated: bool,
}

/// The demand of a program, and its supply.
#[derive(Debug, Serialize, JsonSchema)]
struct ProgramDocument {
    program: String,
    /// Null if copies are wanted.
    wanted_rate: Option<f64>,
    /// Null if a rate is wanted.
    wanted_copies: Option<u32>,
    rate: f64,
    copies: u32,
}

impl AdviceDocument {
    pub fn of(advice: &Advice, node: &EmptyNode, wanted: &Wanted, profile: String) -> Self {
        let placed = advice.placed(node);
        let used: Vec<u32> = placed
            .iter()
            .flat_map(|(indices, _)| indices.clone())
            .collect();
        let gpus: Vec<GpusDocument> = placed
            .iter()
            .map(|(indices, gpu)| GpusDocument::of(indices, gpu, &node.groups[gpu.group]))
            .collect();
        let rows = || {
            advice
                .gpus
                .iter()
                .flat_map(|gpu| &gpu.devices)
                .flat_map(|device| &device.programs)
        };
        let programs = wanted.programs.iter().map(|program| {
            let own = rows().filter(|row| row.program == program.name);
            let (wanted_rate, wanted_copies) = match program.amount {
                Amount::Rate(rate) => (Some(rate), None),
                Amount::Copies(copies) => (None, Some(copies)),
            };
            ProgramDocument {
                program: program.name.clone(),
                wanted_rate,
                wanted_copies,
                rate: own.clone().map(|row| row.throughput).sum(),
                copies: own.map(|row| row.copies).sum(),
            }
        });
        let indices = node.node.gpus.iter().map(|gpu| gpu.index);
        Self {
            version: VERSION,
            unused: indices.filter(|index| !used.contains(index)).collect(),
            slices: advice.slices,
            largest_free_block: advice.free,
            is_proven: advice.is_proven,
            least_gpus: advice.least_gpus,
            least_slices: advice.least_slices,
            undivided_gpus: advice.undivided,
            programs: programs.collect(),
            gpus,
            profile,
        }
    }

    /// Says how many GPUs are used, and how sure it is that no fewer would do.
    fn conclusion(&self) -> String {
        let used: usize = self.gpus.iter().map(|gpus| gpus.indices.len()).sum();
        let what = format!(
            "{}, {}",
            count(used, "GPU"),
            count(self.slices as usize, "slice")
        );
        if self.is_proven {
            return format!("{what}: no layout has fewer");
        }
        let mut proven = Vec::new();
        if self.least_gpus as usize == used {
            proven.push("no layout has fewer GPUs".to_owned());
        } else {
            let least = count(self.least_gpus as usize, "GPU");
            proven.push(format!("{least} are needed at least"));
        }
        if self.least_slices < self.slices {
            let least = count(self.least_slices as usize, "slice");
            proven.push(format!("{least} are needed at least on so many GPUs"));
        }
        format!(
            "{what}, and perhaps not the best layout: {}",
            proven.join(", and ")
        )
    }

    /// Says what is left over, and what undivided GPUs would do.
    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let mut free = Vec::new();
        if !self.unused.is_empty() {
            free.push(format!("GPU {}", ranges(&self.unused)));
        }
        if self.largest_free_block > 0 {
            let block = count(self.largest_free_block as usize, "memory slice");
            free.push(format!("a block of {block} on a GPU in use"));
        }
        let free = if free.is_empty() {
            "nothing".to_owned()
        } else {
            free.join(", and ")
        };
        remarks.push(format!("Left over: {free}."));
        let devices = || self.gpus.iter().flat_map(|gpus| &gpus.devices);
        match self.undivided_gpus {
            _ if devices().all(|device| device.profile.is_none()) => {}
            Some(gpus) => remarks.push(format!(
                "With undivided GPUs, {} would be needed.",
                count(gpus as usize, "GPU")
            )),
            None => remarks.push(
                "With undivided GPUs: not known, since a program has no figures for them."
                    .to_owned(),
            ),
        }
        for device in devices().filter(|device| device.programs.len() > 1) {
            let names: Vec<&str> = device
                .programs
                .iter()
                .map(|one| one.program.as_str())
                .collect();
            remarks.push(format!(
                "{} were measured apart: beside each other they may be slower.",
                names.join(" and ")
            ));
        }
        let all = devices().flat_map(|device| &device.programs);
        for one in all.clone().filter(|one| one.limits_itself) {
            let (program, threads) = (&one.program, in_tenths(one.active_thread_percentage));
            remarks.push(format!(
                "Start {program} with mig-mps run --threads {threads}."
            ));
        }
        if all.clone().any(|one| one.is_interpolated) {
            remarks.push("* computed from two measurements, and not measured".to_owned());
        }
        let mut seen = BTreeSet::new();
        remarks.retain(|remark| seen.insert(remark.clone()));
        remarks
    }

    fn table(&self, width: usize) -> String {
        let mut table = Table::new(vec![
            Column::left("PROGRAM", 0),
            Column::left("DEVICES", 0),
            Column::right("COPIES", 0),
            Column::right("THREADS", 2),
            Column::right("RATE", 0),
            Column::right("WANTED", 0),
            Column::right("GIB", 1),
            Column::right("LATENCY", 2).for_values(),
        ]);
        for program in &self.programs {
            let mut wanted = match (program.wanted_rate, program.wanted_copies) {
                (Some(rate), _) => figure(rate),
                (None, copies) => format!("{} copies", copies.unwrap_or(0)),
            };
            let own = self.gpus.iter().flat_map(|gpus| {
                let devices = gpus.devices.iter().flat_map(|device| {
                    let programs = device.programs.iter();
                    programs.map(move |one| (device.profile.as_deref().unwrap_or("whole"), one))
                });
                devices.map(|(device, one)| (device, one, gpus.indices.len()))
            });
            let own = own.filter(|(_, one, _)| one.program == program.program);
            let alike = |one: &(&str, &FiguresDocument, usize),
                         other: &(&str, &FiguresDocument, usize)| {
                (one.0, one.1) == (other.0, other.1)
            };
            for group in grouped(own, alike) {
                let devices: usize = group.iter().map(|(_, _, gpus)| gpus).sum();
                let (device, one, _) = group[0];
                let mark = if one.is_interpolated { "*" } else { "" };
                table.row(vec![
                    escaped(&program.program).into_owned(),
                    format!("{devices} × {device}"),
                    format!("{mark}{}", one.copies),
                    format!("{}%", in_tenths(one.active_thread_percentage)),
                    format!("{mark}{}", figure(times(one.rate, devices))),
                    std::mem::take(&mut wanted),
                    shown_or(one.memory_used_bytes.map(gib), NONE),
                    shown_or(one.latency_ms.map(|ms| format!("{ms} ms")), NONE),
                ]);
            }
        }
        table.within(width, "--json")
    }
}

/// Rounds a percentage to tenths.
fn in_tenths(percentage: f64) -> f64 {
    (percentage * 10.0).round() / 10.0
}

fn times(value: f64, number: usize) -> f64 {
    u32::try_from(number).map_or(f64::INFINITY, |number| value * f64::from(number))
}

impl GpusDocument {
    fn of(indices: &[u32], gpu: &AdvisedGpu, group: &GpuGroup) -> Self {
        let map = gpu.map(group);
        let names = map.as_ref().map(|map| {
            let mut left = gpu.devices.clone();
            let segments = map.segments().iter().map(|segment| {
                let is_it = |device: &AdvisedDevice| {
                    device
                        .profile
                        .as_ref()
                        .is_some_and(|profile| profile.to_string() == segment.label)
                };
                let found = left
                    .iter()
                    .position(is_it)
                    .map(|position| left.remove(position));
                let label = found.map(|device| programs_of(&device)).unwrap_or_default();
                Segment {
                    label,
                    ..segment.clone()
                }
            });
            SliceMap::new(map.units(), segments.collect())
        });
        Self {
            indices: indices.to_vec(),
            model: group.model.map(|model| model.key.clone()),
            product: group.product.clone(),
            map,
            names,
            devices: gpu.devices.iter().map(DeviceDocument::of).collect(),
        }
    }

    fn text(&self) -> String {
        let key = self
            .model
            .as_ref()
            .map(|key| format!("{key}  "))
            .unwrap_or_default();
        let heading = format!("GPU {}  {key}{}", ranges(&self.indices), self.product);
        let mut text = format!("{}\n", style(heading).bold());
        let (kinds, names) = match (&self.map, &self.names) {
            (Some(kinds), Some(names)) => (kinds.clone(), names.clone()),
            _ => (one_piece("whole GPU"), one_piece(&self.programs())),
        };
        let _ = writeln!(text, "  {}\n  {names}", map(&kinds));
        text
    }

    fn programs(&self) -> String {
        let all = self.devices.iter().flat_map(|device| &device.programs);
        let all: Vec<String> = all.map(|one| copies_of(one.copies, &one.program)).collect();
        all.join(" + ")
    }
}

/// The map of a whole GPU.
fn one_piece(label: &str) -> SliceMap {
    let whole = Segment {
        placement: Placement::new(0, 8),
        label: label.to_owned(),
    };
    SliceMap::new(8, vec![whole])
}

/// Returns the programs of a device, as far as there is room on a map: `bert + vgg`.
fn programs_of(device: &AdvisedDevice) -> String {
    let programs = device.programs.iter().map(|row| escaped(&row.program));
    programs.collect::<Vec<_>>().join(" + ")
}

/// `bert ×4`
fn copies_of(copies: u32, program: &str) -> String {
    let program = escaped(program);
    if copies == 1 {
        program.into_owned()
    } else {
        format!("{program} ×{copies}")
    }
}

impl DeviceDocument {
    fn of(device: &AdvisedDevice) -> Self {
        let limited = device.limited();
        let programs = device.programs.iter();
        Self {
            profile: device.profile.as_ref().map(ToString::to_string),
            programs: programs
                .map(|row| FiguresDocument::of(row, limited.contains(&row)))
                .collect(),
        }
    }
}

impl FiguresDocument {
    fn of(row: &Measurement, limits_itself: bool) -> Self {
        Self {
            program: row.program.clone(),
            copies: row.copies,
            active_thread_percentage: row.threads.value(),
            limits_itself,
            rate: row.throughput,
            memory_used_bytes: row.memory_mib.map(|mib| mib << 20),
            latency_ms: row.latency_ms,
            is_interpolated: row.is_interpolated,
        }
    }
}

impl Report for AdviceDocument {
    fn text(&self, width: usize) -> String {
        let mut text = format!("{}\n\n", self.conclusion());
        self.gpus
            .iter()
            .for_each(|gpus| text.push_str(&gpus.text()));
        let _ = write!(text, "\n{}\n", self.table(width));
        self.remarks()
            .iter()
            .for_each(|remark| text.push_str(&hanging("", remark, width)));
        text
    }
}
