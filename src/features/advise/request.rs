//! Programs with the figures that can be used for each, as a problem of the solver.

use std::cmp::Reverse;

use thiserror::Error;

use crate::catalog::Model;
use crate::failure::{ExitStatus, Failure};
use crate::geometry::{GpuInstanceProfile, enumerate_partitions};
use crate::host::{format_count, join_words};
use crate::plan::virtual_node::{EmptyNode, GpuGroup};
use crate::profile::{Amount, MeasuredDevice, Measurement, Sharing, WantedProgram, WantedPrograms};
use crate::render::format::escape_text;

use super::figures::{Figure, client_limit, usable_figures};
use super::solver::{
    Demand, GpuLayout, Load, Offer, PARTS, PackingProblem, SearchResult, Size, Solution,
    fewest_gpus, find_smallest,
};

/// The number of GPUs where as many may be had as are needed.
pub const ANY_NUMBER: u32 = 1024;

/// The largest effort of a search.
pub const MOST_EFFORT: u32 = 1000;

/// The reason why there is no advice.
#[derive(Debug, Error)]
pub enum NoAdvice {
    /// For each program without figures what they lack.
    #[error("{}", .0.join("\n"))]
    Unusable(Vec<String>),
    #[error("the programs need more than {ANY_NUMBER} GPUs, the maximum of advise")]
    TooMany,
    #[error("the programs do not fit on {}", format_count(*gpus, "GPU"))]
    TooFew {
        gpus: usize,
        /// The number of GPUs that would do, if that is known.
        needed: Option<u32>,
    },
    /// A limit was reached.
    #[error("no layout was found, but it is not proven that there is none")]
    NotFound {
        /// The effort of the search.
        effort: u32,
    },
}

impl Failure for NoAdvice {
    fn status(&self) -> ExitStatus {
        match self {
            Self::Unusable(_) | Self::TooMany | Self::TooFew { .. } => ExitStatus::Infeasible,
            Self::NotFound { .. } => ExitStatus::Failed,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Unusable(_) => {
                Some("measure more with `mig-mps compare DEVICE --save FILE -- PROGRAM`".to_owned())
            }
            Self::TooFew { needed, .. } => {
                let otherwise = "request less, allow more latency, or let programs share devices";
                Some(needed.map_or_else(
                    || otherwise.to_owned(),
                    |gpus| format!("use {}, {otherwise}", format_count(gpus as usize, "GPU")),
                ))
            }
            Self::TooMany => Some("check the units of rates".to_owned()),
            Self::NotFound { effort } => {
                let longer = longer_effort(*effort).map_or_else(String::new, |effort| {
                    format!("search longer (`mig-mps advise --effort {effort}`), ")
                });
                Some(format!(
                    "{longer}check the units of rates, or remove the figures of devices that you do not want to use"
                ))
            }
        }
    }
}

/// Returns the effort of a longer search, ten times as long if that is allowed; `None` after the longest.
pub fn longer_effort(effort: u32) -> Option<u32> {
    let longer = effort.saturating_mul(10).min(MOST_EFFORT);
    (longer > effort).then_some(longer)
}

/// Programs on the GPUs of a node, and the figures that can be used for each.
pub struct AdviceRequest<'a> {
    pub node: &'a EmptyNode,
    wanted: &'a [WantedProgram],
    figures: Vec<Vec<Figure>>,
    pub effort: u32,
    pub problem: PackingProblem,
}

impl<'a> AdviceRequest<'a> {
    /// Chooses the figures that can be used for each program, on so many GPUs of each group. Figures between measured ones
    /// are used only if `interpolates` is true. The search does up to `effort` times the usual work.
    pub fn new(
        node: &'a EmptyNode,
        gpus: &[u32],
        wanted: &'a WantedPrograms,
        interpolates: bool,
        effort: u32,
    ) -> Result<Self, NoAdvice> {
        let mut figures = Vec::new();
        let mut unusable = Vec::new();
        for program in &wanted.programs {
            match usable_figures(node, program, &wanted.measured, interpolates) {
                Ok(usable) => figures.push(usable),
                Err(why) => unusable.push(format!("program {} {why}", program.name)),
            }
        }
        if !unusable.is_empty() {
            return Err(NoAdvice::Unusable(unusable));
        }
        let mut request = Self {
            node,
            wanted: &wanted.programs,
            figures,
            effort,
            problem: PackingProblem::default(),
        };
        request.problem = request.problem_on(gpus, request.measured_sizes());
        Ok(request)
    }

    pub fn smallest_solution(&self) -> Result<Solution, NoAdvice> {
        match find_smallest(&self.problem) {
            SearchResult::Solution(solution) => Ok(solution),
            SearchResult::None if self.problem.gpus.contains(&ANY_NUMBER) => Err(NoAdvice::TooMany),
            SearchResult::None => Err(NoAdvice::TooFew {
                gpus: self.problem.gpus.iter().sum::<u32>() as usize,
                needed: fewest_gpus(&self.problem_on(&self.any_number(), self.measured_sizes())),
            }),
            SearchResult::Unknown => Err(NoAdvice::NotFound {
                effort: self.effort,
            }),
        }
    }

    /// Returns the number of GPUs that would do if each was one device; `None` if a program has no figures for that, or
    /// if no such number is known.
    pub fn undivided_gpus(&self) -> Option<u32> {
        let mut sizes = self.measured_sizes();
        sizes.retain(|size| size.slices == slices_of(&self.node.groups[size.group]));
        let problem = self.problem_on(&self.any_number(), sizes);
        let can_be_met = problem
            .demands
            .iter()
            .all(|demand| !demand.offers.is_empty());
        can_be_met.then(|| fewest_gpus(&problem))?
    }

    /// Returns the measurement that a load rests on.
    pub fn measurement_of(&self, load: Load) -> &Measurement {
        &self.figures[load.demand][self.problem.offer(load).row].measured
    }

    /// Says which GPUs were left out for want of figures, and of which programs more copies on a device were not measured.
    pub fn describe_unmeasured(&self, solution: &Solution) -> Vec<String> {
        let mut remarks = Vec::new();
        for (nth, group) in self.node.groups.iter().enumerate() {
            let has_none = |figures: &&Vec<Figure>| figures.iter().all(|one| one.group != nth);
            let programs = self.wanted.iter().zip(&self.figures);
            let lacking: Vec<&str> = programs
                .filter(|(_, figures)| has_none(figures))
                .map(|(program, _)| program.name.as_str())
                .collect();
            let gpu = group
                .model
                .map_or(group.product.as_str(), |model| &model.key);
            match lacking.as_slice() {
                [] => {}
                all if all.len() == self.wanted.len() => {
                    remarks.push(format!(
                        "Left out, because no program has figures for it: {gpu}."
                    ));
                }
                some => {
                    let have = if some.len() == 1 { "has" } else { "have" };
                    let names = join_words(some, "and");
                    remarks.push(format!("{names} {have} no figures for {gpu}."));
                }
            }
        }
        let loads: Vec<Load> = solution
            .gpus
            .iter()
            .flat_map(|(_, devices)| devices)
            .flat_map(|device| &device.loads)
            .copied()
            .collect();
        for load in &loads {
            remarks.extend(self.describe_more_copies(*load));
        }
        remarks
    }

    /// Says that no figures have more copies of a program on a device, if the device may take more.
    fn describe_more_copies(&self, load: Load) -> Option<String> {
        let program = &self.wanted[load.demand];
        let size = &self.problem.sizes[self.problem.offer(load).size];
        let used = self.measurement_of(load);
        let most = self.figures[load.demand]
            .iter()
            .filter(|figure| size.matches_figure(figure))
            .map(|figure| figure.measured.copies)
            .max()?;
        let each_mib = used.memory_mib.unwrap_or(0) / u64::from(used.copies.max(1));
        let has_room = most < size.clients
            && (u64::from(most) + 1) * each_mib.max(program.memory_mib) <= size.memory_mib;
        let is_shareable = program.sharing != Sharing::Alone;
        let device = match &size.device {
            MeasuredDevice::Whole => "a whole GPU".to_owned(),
            MeasuredDevice::Instance(name) => name.to_string(),
        };
        (used.copies == most && has_room && is_shareable).then(|| {
            format!(
                "Not measured, and perhaps smaller: more than {most} {} of {} on {device}.",
                if most == 1 { "copy" } else { "copies" },
                escape_text(&program.name)
            )
        })
    }

    fn any_number(&self) -> Vec<u32> {
        vec![ANY_NUMBER; self.node.groups.len()]
    }

    /// The sizes of devices that programs have figures for; the largest of each group first.
    fn measured_sizes(&self) -> Vec<Size> {
        let mut sizes = Vec::new();
        for (nth, group) in self.node.groups.iter().enumerate() {
            sizes.push(Size {
                group: nth,
                device: MeasuredDevice::Whole,
                slices: slices_of(group),
                memory_mib: memory_of(group),
                clients: client_limit(self.node, nth, &MeasuredDevice::Whole),
            });
            let mut instances: Vec<Size> = plain_profiles(group)
                .map(|profile| {
                    let device = MeasuredDevice::Instance(profile.name.clone());
                    Size {
                        group: nth,
                        clients: client_limit(self.node, nth, &device),
                        device,
                        slices: profile.slices,
                        memory_mib: profile.memory_mib,
                    }
                })
                .collect();
            instances.sort_by_key(|size| Reverse((size.slices, size.memory_mib)));
            sizes.extend(instances);
        }
        sizes.retain(|size| {
            self.figures
                .iter()
                .flatten()
                .any(|figure| size.matches_figure(figure))
        });
        sizes
    }

    fn problem_on(&self, gpus: &[u32], sizes: Vec<Size>) -> PackingProblem {
        let groups = self.node.groups.iter().enumerate();
        let programs = self.wanted.iter().zip(&self.figures);
        PackingProblem {
            gpus: gpus.to_vec(),
            layouts: groups
                .flat_map(|(nth, group)| layouts_of(nth, group, &sizes))
                .collect(),
            demands: programs
                .map(|(program, figures)| self.program_demand(program, figures, &sizes))
                .collect(),
            sizes,
            effort: self.effort,
        }
    }

    /// Returns what a program wants, with those of its figures that no others make needless.
    fn program_demand(
        &self,
        program: &WantedProgram,
        figures: &[Figure],
        sizes: &[Size],
    ) -> Demand {
        let others = self.wanted.iter().enumerate();
        let friends: Vec<usize> = others
            .filter(|(_, other)| may_share_with(program, other) && may_share_with(other, program))
            .map(|(nth, _)| nth)
            .collect();
        let mut offers: Vec<Offer> = Vec::new();
        for (row, figure) in figures.iter().enumerate() {
            let Some(size) = sizes.iter().position(|size| size.matches_figure(figure)) else {
                continue;
            };
            let measured = &figure.measured;
            let tenths = measured.threads.to_tenths().saturating_mul(measured.copies);
            let wanted_mib = program.memory_mib * u64::from(measured.copies);
            offers.push(Offer {
                size,
                parts: if friends.is_empty() {
                    PARTS
                } else {
                    tenths.min(PARTS)
                },
                memory_mib: measured.memory_mib.unwrap_or(0).max(wanted_mib),
                copies: measured.copies,
                supply: match program.amount {
                    // Not infinite for a rate next to nothing.
                    Amount::Rate(rate) => (measured.throughput / rate).min(1e9),
                    Amount::Copies(copies) => f64::from(measured.copies) / f64::from(copies),
                },
                row,
            });
        }
        // Of equal ones, the first.
        let all = offers.clone();
        offers.retain(|one| {
            !all.iter().any(|other| {
                let is_as_good = other.size == one.size
                    && other.parts <= one.parts
                    && (other.memory_mib <= one.memory_mib && other.copies <= one.copies
                        || one.parts == PARTS)
                    && other.supply >= one.supply;
                let is_better = other.parts < one.parts || other.supply > one.supply;
                is_as_good && other.row != one.row && (is_better || other.row < one.row)
            })
        });
        let per_slice = |offer: &Offer| {
            offer.supply / (f64::from(sizes[offer.size].slices) * f64::from(offer.parts))
        };
        offers.sort_by(|one, other| per_slice(other).total_cmp(&per_slice(one)));
        Demand { offers, friends }
    }
}

impl Size {
    fn matches_figure(&self, figure: &Figure) -> bool {
        self.group == figure.group && self.device == figure.measured.device
    }
}

/// True if a program may share a device with another.
fn may_share_with(program: &WantedProgram, other: &WantedProgram) -> bool {
    program.name != other.name
        && match &program.sharing {
            Sharing::Any => true,
            Sharing::With(names) => names.contains(&other.name),
            Sharing::Alone | Sharing::Own => false,
        }
}

/// The instance profiles of a GPU without attributes.
pub fn plain_profiles(group: &GpuGroup) -> impl Iterator<Item = &GpuInstanceProfile> {
    group
        .profiles
        .iter()
        .filter(|profile| profile.name.is_plain())
}

/// Returns the memory of a whole GPU in MiB; without a limit if nobody has published it.
pub fn memory_of(group: &GpuGroup) -> u64 {
    let published = group.model.and_then(Model::memory_gib);
    group
        .memory_mib
        .or(published.map(|gib| gib << 10))
        .unwrap_or(u64::MAX >> 1)
}

/// Returns the compute slices of a whole GPU.
pub fn slices_of(group: &GpuGroup) -> u32 {
    group
        .profiles
        .iter()
        .map(|profile| profile.slices)
        .max()
        .unwrap_or(1)
}

/// Returns every layout of a GPU with devices of these sizes.
fn layouts_of(nth: usize, group: &GpuGroup, sizes: &[Size]) -> Vec<GpuLayout> {
    let offered: Vec<GpuInstanceProfile> = plain_profiles(group)
        .filter(|profile| {
            let device = MeasuredDevice::Instance(profile.name.clone());
            sizes
                .iter()
                .any(|size| size.group == nth && size.device == device)
        })
        .cloned()
        .collect();
    let mut layouts: Vec<GpuLayout> = enumerate_partitions(&offered, 0)
        .into_iter()
        .map(|partition| GpuLayout {
            group: nth,
            counts: sizes
                .iter()
                .map(|size| match &size.device {
                    MeasuredDevice::Instance(name) if size.group == nth => partition
                        .counts
                        .iter()
                        .find(|(profile, _)| profile.name == *name)
                        .map_or(0, |(_, count)| *count),
                    _ => 0,
                })
                .collect(),
            free: partition
                .to_slice_map(&group.profiles)
                .map_or(0, |map| map.largest_free()),
        })
        .collect();
    let whole: Vec<u32> = sizes
        .iter()
        .map(|size| u32::from(size.group == nth && size.device == MeasuredDevice::Whole))
        .collect();
    if whole.contains(&1) {
        layouts.push(GpuLayout {
            group: nth,
            counts: whole,
            free: 0,
        });
    }
    layouts
}
