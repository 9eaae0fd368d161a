//! The figures that can be used for a program: those of these GPUs that keep its limits.

use crate::catalog;
use crate::plan::virtual_node::{EmptyNode, GpuGroup};
use crate::profile::{Amount, MeasuredDevice, Measurement, Sharing, WantedProgram};

use super::request::{memory_of, plain};

/// Figures of a program on a device of one of the groups.
#[derive(Clone, Debug)]
pub struct Figure {
    pub group: usize,
    pub measured: Measurement,
}

/// Returns the figures that can be used for a program.
///
/// # Errors
/// Says what its figures lack, to be read after its name.
pub fn usable(
    node: &EmptyNode,
    program: &WantedProgram,
    measured: &[Measurement],
    interpolates: bool,
) -> Result<Vec<Figure>, String> {
    let all = measured.iter().filter(|row| row.program == program.name);
    let all: Vec<&Measurement> = all.collect();
    if all.is_empty() {
        return Err("has no figures".to_owned());
    }
    let mut figures = on_these_gpus(node, &all).ok_or_else(|| {
        let mut gpus: Vec<&str> = all.iter().map(|row| row.gpu.as_str()).collect();
        gpus.sort_unstable();
        gpus.dedup();
        format!("has figures for {} alone", gpus.join(", "))
    })?;
    let counts_runs = |figure: &Figure| figure.measured.counts_runs;
    let is_mixed = figures.iter().any(counts_runs) && !figures.iter().all(counts_runs);
    if is_mixed && matches!(program.amount, Amount::Rate(_)) {
        return Err("has figures that count its runs, and others that do not".to_owned());
    }
    if interpolates {
        figures.extend(between_sizes(node, &figures));
        figures.extend(between_copies(&figures));
    }
    let figures = kept(
        figures,
        |_| true,
        || "has no figures for a device that these GPUs can have",
    )?;
    let figures = within_latency(figures, program)?;
    let figures = kept(
        figures,
        |row| program.sharing != Sharing::Alone || row.measured.copies == 1,
        || "shares no device, and has no figures for a single copy",
    )?;
    kept(
        figures,
        |row| has_memory(node, program, row),
        || "has no figures for a device with enough memory for its copies",
    )
}

/// Keeps those figures for which a condition holds.
///
/// # Errors
/// The reason why there are none.
fn kept<T: Into<String>>(
    mut figures: Vec<Figure>,
    is_kept: impl Fn(&Figure) -> bool,
    otherwise: impl FnOnce() -> T,
) -> Result<Vec<Figure>, String> {
    figures.retain(is_kept);
    if figures.is_empty() {
        return Err(otherwise().into());
    }
    Ok(figures)
}

fn within_latency(figures: Vec<Figure>, program: &WantedProgram) -> Result<Vec<Figure>, String> {
    let Some(most) = program.latency_ms else {
        return Ok(figures);
    };
    let latencies = figures.iter().filter_map(|row| row.measured.latency_ms);
    let least = latencies.min_by(f64::total_cmp);
    kept(
        figures,
        |row| row.measured.latency_ms.is_some_and(|own| own <= most),
        || match least {
            Some(least) => format!("has a latency of {least} ms or more in all figures"),
            None => "has a largest latency, and no figures with a latency".to_owned(),
        },
    )
}

/// Returns the figures of devices that these GPUs can have; `None` if all are of other GPUs.
fn on_these_gpus(node: &EmptyNode, all: &[&Measurement]) -> Option<Vec<Figure>> {
    let mut figures: Vec<Figure> = Vec::new();
    let mut is_of_these = false;
    for row in all {
        for (nth, group) in node.groups.iter().enumerate() {
            if !is_of(row, group) {
                continue;
            }
            is_of_these = true;
            let Some(device) = device_of(row, group) else {
                continue;
            };
            let measured = Measurement {
                device,
                ..(*row).clone()
            };
            // Of figures for the same, the latest.
            figures
                .retain(|earlier| earlier.group != nth || !is_alike(&earlier.measured, &measured));
            figures.push(Figure {
                group: nth,
                measured,
            });
        }
    }
    is_of_these.then_some(figures)
}

/// True if figures are of a GPU of this group.
fn is_of(row: &Measurement, group: &GpuGroup) -> bool {
    let named = catalog::find(&row.gpu).ok();
    row.gpu == group.product
        || named.is_some_and(|named| group.model.is_some_and(|model| model.key == named.key))
}

/// Returns the device of figures as a GPU of this group has it, by its full name.
fn device_of(row: &Measurement, group: &GpuGroup) -> Option<MeasuredDevice> {
    let MeasuredDevice::Instance(name) = &row.device else {
        return Some(MeasuredDevice::Whole);
    };
    let found = name.choose(plain(group).map(|profile| (&profile.name, &profile.name)));
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
        MeasuredDevice::Whole => Some(memory_of(group)),
        MeasuredDevice::Instance(name) => plain(group)
            .find(|profile| profile.name == *name)
            .map(|profile| profile.memory_mib),
    };
    let wanted = program.memory_mib.saturating_mul(u64::from(row.copies));
    let used = row.memory_mib.filter(|_| row.is_interpolated).unwrap_or(0);
    has.is_some_and(|has| wanted.max(used) <= has)
}

/// Returns figures for the instance profiles between two that were measured with as many copies.
fn between_sizes(node: &EmptyNode, figures: &[Figure]) -> Vec<Figure> {
    let slices = |row: &Measurement| match &row.device {
        MeasuredDevice::Whole => None,
        MeasuredDevice::Instance(name) => Some(name.slices()),
    };
    let alike = |one: &Measurement, other: &Measurement| {
        one.threads == other.threads && one.copies == other.copies
    };
    let pairs = neighbours(figures, slices, alike);
    let between = pairs.flat_map(|(low, high, [from, to])| {
        let profiles = plain(&node.groups[low.group]);
        let between = profiles.filter(move |profile| (from + 1..to).contains(&profile.slices));
        between.map(move |profile| {
            let mut figure = interpolated(low, high, [from, profile.slices, to]);
            figure.measured.device = MeasuredDevice::Instance(profile.name.clone());
            figure
        })
    });
    between.collect()
}

/// Returns figures for the numbers of copies between two that were measured on the same device.
fn between_copies(figures: &[Figure]) -> Vec<Figure> {
    let alike = |one: &Measurement, other: &Measurement| {
        one.device == other.device && one.threads == other.threads
    };
    let pairs = neighbours(figures, |row| Some(row.copies), alike);
    let between = pairs.flat_map(|(low, high, [from, to])| {
        (from + 1..to).map(move |copies| {
            let mut figure = interpolated(low, high, [from, copies, to]);
            figure.measured.copies = copies;
            figure
        })
    });
    between.collect()
}

/// Returns the pairs of figures that are alike but for one quantity, with none between them, and that quantity of both.
fn neighbours(
    figures: &[Figure],
    quantity: impl Fn(&Measurement) -> Option<u32>,
    alike: impl Fn(&Measurement, &Measurement) -> bool,
) -> impl Iterator<Item = (&Figure, &Figure, [u32; 2])> {
    figures.iter().filter_map(move |low| {
        let from = quantity(&low.measured)?;
        let others = figures
            .iter()
            .filter(|other| low.group == other.group && alike(&low.measured, &other.measured));
        let larger = others.filter_map(|high| Some((high, quantity(&high.measured)?)));
        let (high, to) = larger
            .filter(|(_, to)| *to > from)
            .min_by_key(|(_, to)| *to)?;
        Some((low, high, [from, to]))
    })
}

/// Returns the figures at a place between two others: the throughput on the line between theirs, and the larger memory and
/// latency.
fn interpolated(low: &Figure, high: &Figure, [from, at, to]: [u32; 3]) -> Figure {
    let group = low.group;
    let (low, high) = (&low.measured, &high.measured);
    let part = f64::from(at - from) / f64::from(to - from);
    let latencies = low.latency_ms.zip(high.latency_ms);
    Figure {
        group,
        measured: Measurement {
            throughput: low.throughput + part * (high.throughput - low.throughput),
            memory_mib: low.memory_mib.max(high.memory_mib),
            latency_ms: latencies.map(|(low, high)| low.max(high)),
            is_interpolated: true,
            ..low.clone()
        },
    }
}
