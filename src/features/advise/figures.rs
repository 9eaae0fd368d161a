//! The figures that can be used for a program: those of these GPUs that keep its limits.

use std::fmt;

use super::advice::memory_of;
use crate::geometry::ProfileName;
use crate::plan::virtual_node::{EmptyNode, GpuGroup};
use crate::profile::{Amount, MeasuredDevice, Measurement, Sharing, WantedProgram};

/// A program without figures that can be used, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    pub program: String,
    why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    NoFigures,
    OtherGpus(Vec<String>),
    /// None for a device that these GPUs can have.
    NoSuchDevice,
    Mixed,
    NoLatency,
    TooSlow(String),
    SeveralCopies,
    TooLittleMemory,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = &self.program;
        match &self.why {
            Why::NoFigures => write!(f, "{program} has no figures"),
            Why::OtherGpus(gpus) => {
                write!(f, "{program} has figures for {} alone", gpus.join(", "))
            }
            Why::NoSuchDevice => write!(
                f,
                "{program} has no figures for a device that these GPUs can have"
            ),
            Why::Mixed => {
                write!(
                    f,
                    "{program} has figures that count its runs, and others that do not"
                )
            }
            Why::NoLatency => write!(
                f,
                "{program} has a largest latency, and no figures with a latency"
            ),
            Why::TooSlow(least) => write!(
                f,
                "{program} has a latency of {least} ms or more in all figures"
            ),
            Why::SeveralCopies => {
                write!(
                    f,
                    "{program} shares no device, and has no figures for a single copy"
                )
            }
            Why::TooLittleMemory => {
                write!(
                    f,
                    "{program} has no figures for a device with enough memory for its copies"
                )
            }
        }
    }
}

/// Figures of a program on a device of one of the groups.
#[derive(Clone, Debug)]
pub struct Figure {
    pub group: usize,
    pub measured: Measurement,
}

/// Returns the figures that can be used for a program.
pub fn usable(
    node: &EmptyNode,
    program: &WantedProgram,
    measured: &[Measurement],
    interpolates: bool,
) -> Result<Vec<Figure>, Unusable> {
    let because = |why| Unusable {
        program: program.name.clone(),
        why,
    };
    let all: Vec<&Measurement> = measured
        .iter()
        .filter(|row| row.program == program.name)
        .collect();
    if all.is_empty() {
        return Err(because(Why::NoFigures));
    }
    let mut figures = on_these_gpus(node, &all).ok_or_else(|| {
        let mut gpus: Vec<String> = all.iter().map(|row| row.gpu.clone()).collect();
        gpus.sort();
        gpus.dedup();
        because(Why::OtherGpus(gpus))
    })?;
    let runs = figures
        .iter()
        .filter(|figure| figure.measured.counts_runs)
        .count();
    if matches!(program.amount, Amount::Rate(_)) && runs > 0 && runs < figures.len() {
        return Err(because(Why::Mixed));
    }
    if interpolates {
        figures.extend(between_sizes(node, &figures));
        figures.extend(between_copies(&figures));
    }
    keep(&mut figures, |_| true).ok_or_else(|| because(Why::NoSuchDevice))?;
    if let Some(most) = program.latency_ms {
        keep(&mut figures, |row| row.measured.latency_ms.is_some())
            .ok_or_else(|| because(Why::NoLatency))?;
        let latencies = figures
            .iter()
            .filter_map(|figure| figure.measured.latency_ms);
        let least = latencies.fold(f64::INFINITY, f64::min).to_string();
        keep(&mut figures, |row| {
            row.measured.latency_ms.is_some_and(|own| own <= most)
        })
        .ok_or_else(|| because(Why::TooSlow(least)))?;
    }
    if program.sharing == Sharing::Alone {
        keep(&mut figures, |row| row.measured.copies == 1)
            .ok_or_else(|| because(Why::SeveralCopies))?;
    }
    keep(&mut figures, |row| has_memory(node, program, row))
        .ok_or_else(|| because(Why::TooLittleMemory))?;
    Ok(figures)
}

/// Returns the figures of devices that these GPUs can have; `None` if all are of other GPUs.
fn on_these_gpus(node: &EmptyNode, all: &[&Measurement]) -> Option<Vec<Figure>> {
    let mut figures: Vec<Figure> = Vec::new();
    let mut is_of_these = false;
    for row in all {
        for (group, of) in node.groups.iter().enumerate() {
            if !is_of(row, of) {
                continue;
            }
            is_of_these = true;
            let Some(device) = device_of(row, of) else {
                continue;
            };
            let measured = Measurement {
                device,
                ..(*row).clone()
            };
            // Of figures for the same, the latest.
            figures.retain(|earlier| {
                earlier.group != group || !is_alike(&earlier.measured, &measured)
            });
            figures.push(Figure { group, measured });
        }
    }
    is_of_these.then_some(figures)
}

/// Keeps those figures for which a condition holds; `None` if there are none.
fn keep(figures: &mut Vec<Figure>, is_kept: impl Fn(&Figure) -> bool) -> Option<()> {
    figures.retain(is_kept);
    (!figures.is_empty()).then_some(())
}

/// True if figures are of a GPU of this group.
fn is_of(row: &Measurement, group: &GpuGroup) -> bool {
    let named = crate::catalog::find(&row.gpu).ok();
    row.gpu == group.product
        || named.is_some_and(|named| group.model.is_some_and(|model| model.key == named.key))
}

/// Returns the device of figures as a GPU of this group has it, by its full name.
fn device_of(row: &Measurement, group: &GpuGroup) -> Option<MeasuredDevice> {
    let MeasuredDevice::Instance(name) = &row.device else {
        return Some(MeasuredDevice::Whole);
    };
    let plain = group
        .profiles
        .iter()
        .filter(|profile| profile.name.is_plain());
    let found = name.choose(plain.map(|profile| (&profile.name, &profile.name)));
    found.cloned().map(MeasuredDevice::Instance)
}

/// True if both are for the same number of copies on the same device.
fn is_alike(one: &Measurement, other: &Measurement) -> bool {
    one.device == other.device && one.threads == other.threads && one.copies == other.copies
}

/// True if a device has the memory that the copies want, and that they were seen to use.
fn has_memory(node: &EmptyNode, program: &WantedProgram, figure: &Figure) -> bool {
    let group = &node.groups[figure.group];
    let row = &figure.measured;
    let has = match &row.device {
        MeasuredDevice::Whole => memory_of(group),
        MeasuredDevice::Instance(name) => memory_of_instance(group, name),
    };
    let wanted = program.memory_mib.saturating_mul(u64::from(row.copies));
    wanted <= has && (!row.is_interpolated || row.memory_mib.unwrap_or(0) <= has)
}

fn memory_of_instance(group: &GpuGroup, name: &ProfileName) -> u64 {
    let mut profiles = group.profiles.iter();
    profiles
        .find(|profile| profile.name == *name)
        .map_or(0, |profile| profile.memory_mib)
}

/// Returns figures for the instance profiles between two that were measured with as many copies.
fn between_sizes(node: &EmptyNode, figures: &[Figure]) -> Vec<Figure> {
    let slices = |figure: &Figure| match &figure.measured.device {
        MeasuredDevice::Whole => None,
        MeasuredDevice::Instance(name) => Some(name.slices()),
    };
    let alike = |one: &Figure, other: &Figure| {
        let (a, b) = (&one.measured, &other.measured);
        one.group == other.group && a.threads == b.threads && a.copies == b.copies
    };
    let mut between = Vec::new();
    for (low, high) in neighbours(figures, slices, alike) {
        for profile in &node.groups[low.group].profiles {
            let device = MeasuredDevice::Instance(profile.name.clone());
            let (Some(from), Some(to)) = (slices(low), slices(high)) else {
                continue;
            };
            if profile.name.is_plain() && (from + 1..to).contains(&profile.slices) {
                let figure = interpolated(low, high, [from, profile.slices, to]);
                between.push(Figure {
                    measured: Measurement { device, ..figure },
                    ..low.clone()
                });
            }
        }
    }
    between
}

/// Returns figures for the numbers of copies between two that were measured on the same device.
fn between_copies(figures: &[Figure]) -> Vec<Figure> {
    let copies = |figure: &Figure| Some(figure.measured.copies);
    let alike = |one: &Figure, other: &Figure| {
        let (a, b) = (&one.measured, &other.measured);
        one.group == other.group && a.device == b.device && a.threads == b.threads
    };
    let mut between = Vec::new();
    for (low, high) in neighbours(figures, copies, alike) {
        let (from, to) = (low.measured.copies, high.measured.copies);
        for copies in from + 1..to {
            let figure = interpolated(low, high, [from, copies, to]);
            between.push(Figure {
                measured: Measurement { copies, ..figure },
                ..low.clone()
            });
        }
    }
    between
}

/// Returns the pairs of figures that are alike but for one quantity, with none between them.
fn neighbours(
    figures: &[Figure],
    quantity: impl Fn(&Figure) -> Option<u32>,
    alike: impl Fn(&Figure, &Figure) -> bool,
) -> Vec<(&Figure, &Figure)> {
    let mut pairs = Vec::new();
    for low in figures {
        let next = figures
            .iter()
            .filter(|high| {
                alike(low, high) && quantity(high) > quantity(low) && quantity(low).is_some()
            })
            .min_by_key(|high| quantity(high));
        pairs.extend(next.map(|high| (low, high)));
    }
    pairs
}

/// Returns the figures at a place between two others: the throughput on the line between theirs, and the larger memory and
/// latency.
fn interpolated(low: &Figure, high: &Figure, [from, at, to]: [u32; 3]) -> Measurement {
    let (low, high) = (&low.measured, &high.measured);
    let part = f64::from(at - from) / f64::from(to - from);
    Measurement {
        throughput: low.throughput + part * (high.throughput - low.throughput),
        memory_mib: low.memory_mib.max(high.memory_mib),
        latency_ms: match (low.latency_ms, high.latency_ms) {
            (Some(low), Some(high)) => Some(low.max(high)),
            _ => None,
        },
        is_interpolated: true,
        ..low.clone()
    }
}
