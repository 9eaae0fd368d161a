//! The figures that can be used for a program: those of these GPUs that keep its limits.

use crate::catalog;
use crate::plan::virtual_node::{EmptyNode, GpuGroup};
use crate::profile::{Amount, MeasuredDevice, Measurement, Sharing, WantedProgram};
use crate::settings::DeviceSize;

use super::request::{memory_of, plain_profiles, slices_of};

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
pub fn usable_figures(
    node: &EmptyNode,
    program: &WantedProgram,
    measured: &[Measurement],
    interpolates: bool,
) -> Result<Vec<Figure>, String> {
    let all: Vec<&Measurement> = measured
        .iter()
        .filter(|row| row.program == program.name)
        .collect();
    if all.is_empty() {
        return Err("has no figures".to_owned());
    }
    let mut figures = figures_on_node(node, &all).ok_or_else(|| {
        let mut gpus: Vec<&str> = all.iter().map(|row| row.gpu.as_str()).collect();
        gpus.sort_unstable();
        gpus.dedup();
        format!("has figures only for {}", gpus.join(", "))
    })?;
    let counts_runs = |figure: &Figure| figure.measured.counts_runs;
    let is_mixed = figures.iter().any(counts_runs) && !figures.iter().all(counts_runs);
    if is_mixed && matches!(program.amount, Amount::Rate(_)) {
        return Err("has figures that count its runs, and figures that do not".to_owned());
    }
    if interpolates {
        let between = [between_sizes(node, &figures), between_copies(&figures)];
        figures.extend(between.concat());
    }
    let figures = retain_figures(
        figures,
        |_| true,
        "has no figures for a whole GPU or a plain instance profile of these GPUs",
    )?;
    let figures = within_latency(figures, program)?;
    let figures = retain_figures(
        figures,
        |row| program.sharing != Sharing::Alone || row.measured.copies == 1,
        "shares no device, and has no figures for a single copy",
    )?;
    let figures = retain_figures(
        figures,
        |row| row.measured.copies <= client_limit(node, row.group, &row.measured.device),
        "has figures only for more copies than a device accepts clients",
    )?;
    retain_figures(
        figures,
        |row| has_memory(node, program, row),
        "has no figures for a device with enough memory for its copies",
    )
}

/// Keeps those figures for which a condition holds. If there are none, says what the figures lack.
fn retain_figures(
    mut figures: Vec<Figure>,
    is_kept: impl Fn(&Figure) -> bool,
    lack: &str,
) -> Result<Vec<Figure>, String> {
    figures.retain(is_kept);
    if figures.is_empty() {
        return Err(lack.to_owned());
    }
    Ok(figures)
}

fn within_latency(figures: Vec<Figure>, program: &WantedProgram) -> Result<Vec<Figure>, String> {
    let Some(most) = program.latency_ms else {
        return Ok(figures);
    };
    let latencies = figures.iter().filter_map(|row| row.measured.latency_ms);
    let lack = match latencies.min_by(f64::total_cmp) {
        Some(least) => format!("has a latency of {least} ms or more in all figures"),
        None => "has a limit on latency, and no figures with a latency".to_owned(),
    };
    retain_figures(
        figures,
        |row| row.measured.latency_ms.is_some_and(|own| own <= most),
        &lack,
    )
}

/// Returns the figures of devices that these GPUs can have; `None` if all are of other GPUs.
fn figures_on_node(node: &EmptyNode, all: &[&Measurement]) -> Option<Vec<Figure>> {
    let mut figures: Vec<Figure> = Vec::new();
    let mut is_of_these = false;
    for row in all {
        for (nth, group) in node.groups.iter().enumerate() {
            if !is_measured_on(row, group, node.is_real) {
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

/// True if figures are of a GPU of this group. A model stands for its products, which are not equally fast: the figures of
/// one are not used for another that is there.
fn is_measured_on(row: &Measurement, group: &GpuGroup, is_real: bool) -> bool {
    let is_other_product = is_real && catalog::model_with_product(&row.gpu).is_some();
    row.gpu == group.product
        || !is_other_product
            && catalog::find_model(&row.gpu)
                .is_ok_and(|named| group.model.is_some_and(|model| model.key == named.key))
}

/// Returns the device of figures as a GPU of this group has it, by its full name.
fn device_of(row: &Measurement, group: &GpuGroup) -> Option<MeasuredDevice> {
    let MeasuredDevice::Instance(name) = &row.device else {
        return Some(MeasuredDevice::Whole);
    };
    let found =
        name.find_among(plain_profiles(group).map(|profile| (&profile.name, &profile.name)));
    found.cloned().map(MeasuredDevice::Instance)
}

/// True if both are for the same number of copies on the same device.
fn is_alike(one: &Measurement, other: &Measurement) -> bool {
    one.device == other.device && one.threads == other.threads && one.copies == other.copies
}

/// True if a device has the memory that the copies want, by the limits of its share, and that they were seen to use.
fn has_memory(node: &EmptyNode, program: &WantedProgram, figure: &Figure) -> bool {
    let group = &node.groups[figure.group];
    let row = &figure.measured;
    let (has, size) = match &row.device {
        MeasuredDevice::Whole => {
            let has = memory_of(group);
            (has, DeviceSize::for_gpu(None, Some(has)))
        }
        MeasuredDevice::Instance(name) => {
            let profile = plain_profiles(group).find(|profile| profile.name == *name);
            let has = profile.map_or(0, |profile| profile.memory_mib);
            (has, DeviceSize::for_instance(None, has, 1))
        }
    };
    // Copies that were measured did fit; the computed ones may not.
    let used = match row.memory_mib {
        Some(used) if row.is_interpolated => used,
        _ => 0,
    };
    let each = size.mib_of_each(row.copies);
    used <= has && each.is_none_or(|each| program.memory_mib <= each)
}

/// Returns the most clients of a device on the GPUs of a group.
pub fn client_limit(node: &EmptyNode, group: usize, device: &MeasuredDevice) -> u32 {
    let program = node.node.control_program();
    match device {
        MeasuredDevice::Whole => program.client_limit,
        MeasuredDevice::Instance(name) => {
            program.client_limit_of_instance(name.slices(), slices_of(&node.groups[group]))
        }
    }
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
    let pairs = neighboring_pairs(figures, slices, alike);
    let between = pairs.flat_map(|(low, high, [from, to])| {
        let profiles = plain_profiles(&node.groups[low.group]);
        profiles
            .filter(move |profile| (from + 1..to).contains(&profile.slices))
            .map(move |profile| {
                let mut figure = interpolate(low, high, [from, profile.slices, to]);
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
    let pairs = neighboring_pairs(figures, |row| Some(row.copies), alike);
    let between = pairs.flat_map(|(low, high, [from, to])| {
        (from + 1..to).map(move |copies| {
            let mut figure = interpolate(low, high, [from, copies, to]);
            figure.measured.copies = copies;
            figure
        })
    });
    between.collect()
}

/// Returns the pairs of figures that are alike but for one quantity, with none between them, and that quantity of both.
fn neighboring_pairs(
    figures: &[Figure],
    quantity: impl Fn(&Measurement) -> Option<u32>,
    alike: impl Fn(&Measurement, &Measurement) -> bool,
) -> impl Iterator<Item = (&Figure, &Figure, [u32; 2])> {
    figures.iter().filter_map(move |low| {
        let from = quantity(&low.measured)?;
        let (high, to) = figures
            .iter()
            .filter(|other| low.group == other.group && alike(&low.measured, &other.measured))
            .filter_map(|high| Some((high, quantity(&high.measured)?)))
            .filter(|(_, to)| *to > from)
            .min_by_key(|(_, to)| *to)?;
        Some((low, high, [from, to]))
    })
}

/// Returns the figures at a place between two others: the throughput on the line between theirs, and the larger memory and
/// latency.
fn interpolate(low: &Figure, high: &Figure, [from, at, to]: [u32; 3]) -> Figure {
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

#[cfg(test)]
mod tests {
    use super::super::tests::measurement;
    use super::*;

    #[test]
    fn only_measured_figures_count_unless_others_are_asked_for() {
        let node = EmptyNode::of_models(&["a100-80gb:2".parse().unwrap()]);
        let row = |size, copies, throughput| {
            measurement(0, ("a100-80gb", size), 100.0, copies, throughput)
        };
        let wanted = |sharing| WantedProgram {
            name: "p0".to_owned(),
            amount: Amount::Rate(60.0),
            memory_mib: 0,
            latency_ms: None,
            sharing,
        };
        let measured = [
            row("2g.20gb", 1, 20),
            row("2g.20gb", 4, 50),
            row("4g.40gb", 1, 40),
        ];
        let figures = |interpolates| {
            let usable =
                usable_figures(&node, &wanted(Sharing::Own), &measured, interpolates).unwrap();
            let shown = usable.into_iter().map(|figure| {
                let row = figure.measured;
                (
                    row.device.to_string(),
                    row.copies,
                    row.throughput.to_string(),
                    row.is_interpolated,
                )
            });
            shown.collect::<Vec<_>>()
        };
        assert_eq!(figures(false).len(), 3);
        let added: Vec<_> = figures(true).split_off(3);
        let named = |size: &str, copies, throughput: &str| {
            (size.to_owned(), copies, throughput.to_owned(), true)
        };
        assert_eq!(
            added,
            [
                named("3g.40gb", 1, "30"),
                named("2g.20gb", 2, "30"),
                named("2g.20gb", 3, "40")
            ]
        );
        let alone = usable_figures(&node, &wanted(Sharing::Alone), &measured, true).unwrap();
        assert!(alone.iter().all(|figure| figure.measured.copies == 1));
    }

    /// 4,958 MiB are the limit of a quarter of 2g.20gb, of which the server keeps a part.
    #[test]
    fn each_copy_may_have_the_memory_that_it_wants() {
        let node = EmptyNode::of_models(&["a100-80gb:1".parse().unwrap()]);
        let measured = [measurement(0, ("a100-80gb", "2g.20gb"), 100.0, 4, 50)];
        let has_enough = |memory_mib| {
            let wanted = WantedProgram {
                name: "p0".to_owned(),
                amount: Amount::Copies(4),
                memory_mib,
                latency_ms: None,
                sharing: Sharing::Own,
            };
            usable_figures(&node, &wanted, &measured, false).is_ok()
        };
        assert!(has_enough(4958));
        assert!(!has_enough(4959));
    }

    /// Products of a model are not equally fast.
    #[test]
    fn figures_of_another_product_are_not_used_on_a_node() {
        let mut node = EmptyNode::of_models(&["a100-80gb:1".parse().unwrap()]);
        let wanted = WantedProgram {
            name: "p0".to_owned(),
            amount: Amount::Copies(1),
            memory_mib: 0,
            latency_ms: None,
            sharing: Sharing::Own,
        };
        let of_product = |gpu| measurement(0, (gpu, "2g"), 100.0, 1, 5);
        let names = [
            "a100-80gb",
            "NVIDIA A100-SXM4-80GB",
            "NVIDIA A100 80GB PCIe",
        ];
        let are_used = |node: &EmptyNode| {
            names.map(|gpu| usable_figures(node, &wanted, &[of_product(gpu)], false).is_ok())
        };
        assert_eq!(are_used(&node), [true, true, true]);
        node.is_real = true;
        assert_eq!(are_used(&node), [true, true, false]);
    }
}
