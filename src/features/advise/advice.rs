//! The smallest hardware for programs, by measured figures.

use thiserror::Error;

use crate::failure::{ExitStatus, Failure};
use crate::geometry::{GpuInstanceProfile, ProfileName, partitions};
use crate::host::count;
use crate::plan::virtual_node::{EmptyNode, GpuGroup};
use crate::profile::{Amount, MeasuredDevice, Measurement, Sharing, Wanted, WantedProgram};

use super::figures::{Figure, Unusable, usable};
use super::solver::{
    Demand, Found, Layout, Offer, PARTS, Problem, Size, Solution, fewest_gpus, smallest,
};

/// The number of GPUs where as many may be had as are needed.
pub const ANY_NUMBER: u32 = 1024;

/// Devices on GPUs, on which all programs run.
#[derive(Clone, Debug)]
pub struct Advice {
    /// The GPUs, those of each group together.
    pub gpus: Vec<AdvisedGpu>,
    /// The compute slices of all devices.
    pub slices: u32,
    /// The largest free block on one of the GPUs, in placement units.
    pub free: u32,
    /// The number of GPUs that is needed whatever is chosen.
    pub least_gpus: u32,
    /// The number of slices that is needed on as many GPUs.
    pub least_slices: u32,
    /// True if nothing better exists: fewer GPUs, then fewer slices, then a larger free block.
    pub is_proven: bool,
    /// The number of GPUs if each was one device; `None` if a program has no figures for that.
    pub undivided: Option<u32>,
}

/// The devices of a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct AdvisedGpu {
    /// The position of its group in the node.
    pub group: usize,
    pub devices: Vec<AdvisedDevice>,
}

/// A device, and the programs on it.
#[derive(Clone, Debug, PartialEq)]
pub struct AdvisedDevice {
    /// Its instance profile; `None` for a whole GPU.
    pub profile: Option<ProfileName>,
    /// For each program the figures that it is expected to have.
    pub programs: Vec<Measurement>,
}

/// The reason why there is no advice.
#[derive(Debug, Error)]
pub enum NoAdvice {
    #[error("no figures can be used: {}", listed_below(.0))]
    Unusable(Vec<Unusable>),
    #[error("{} do not fit on {}: no layout has what all want", count(*programs, "program"), count(*gpus, "GPU"))]
    TooFew {
        programs: usize,
        gpus: usize,
        /// The number of GPUs that would do, if that is known.
        needed: Option<u32>,
    },
    /// A limit was reached.
    #[error("no layout was found, and it is not proven that there is none")]
    NotFound,
}

fn listed_below(programs: &[Unusable]) -> String {
    let lines: Vec<String> = programs.iter().map(ToString::to_string).collect();
    lines.join("\n  ")
}

impl Failure for NoAdvice {
    fn status(&self) -> ExitStatus {
        match self {
            Self::Unusable(_) | Self::TooFew { .. } => ExitStatus::Infeasible,
            Self::NotFound => ExitStatus::Failed,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Unusable(_) => Some(
                "measure them: mig-mps compare --save FILE --program NAME -- COMMAND".to_owned(),
            ),
            Self::TooFew { needed, .. } => Some(format!(
                "{} would do; or lower a rate, raise a largest latency, or let programs share devices",
                count((*needed)? as usize, "GPU")
            )),
            Self::NotFound => {
                Some("leave out figures of devices that are not to be used".to_owned())
            }
        }
    }
}

/// Returns the smallest hardware for programs, on so many GPUs of each group of a node. Figures between measured ones are
/// used only if `interpolates` is true.
pub fn advise(
    node: &EmptyNode,
    gpus: &[u32],
    wanted: &Wanted,
    interpolates: bool,
) -> Result<Advice, NoAdvice> {
    let mut rows = Vec::new();
    let mut unusable = Vec::new();
    for program in &wanted.programs {
        match usable(node, program, &wanted.measured, interpolates) {
            Ok(figures) => rows.push(figures),
            Err(why) => unusable.push(why),
        }
    }
    if !unusable.is_empty() {
        return Err(NoAdvice::Unusable(unusable));
    }
    let request = Request {
        node,
        wanted: &wanted.programs,
        rows,
    };
    let problem = request.problem(gpus, |_| true);
    match smallest(&problem) {
        Found::Solution(solution) => Ok(request.advice(&problem, solution)),
        Found::None => Err(NoAdvice::TooFew {
            programs: wanted.programs.len(),
            gpus: gpus.iter().sum::<u32>() as usize,
            needed: fewest_gpus(&request.problem(&request.any_number(), |_| true)),
        }),
        Found::Unknown => Err(NoAdvice::NotFound),
    }
}

/// Programs with the figures that can be used for each.
pub struct Request<'a> {
    pub node: &'a EmptyNode,
    pub wanted: &'a [WantedProgram],
    pub rows: Vec<Vec<Figure>>,
}

/// A size of device of a group.
pub struct Candidate<'a> {
    group: usize,
    /// `None` for a whole GPU.
    profile: Option<&'a GpuInstanceProfile>,
    slices: u32,
    /// The slices of the whole GPU.
    all: u32,
    memory_mib: u64,
}

impl Candidate<'_> {
    /// True if it is all of a GPU.
    fn is_undivided(&self) -> bool {
        self.slices == self.all
    }

    fn is_of(&self, figure: &Figure) -> bool {
        let is_same = match (&figure.measured.device, self.profile) {
            (MeasuredDevice::Whole, None) => true,
            (MeasuredDevice::Instance(name), Some(profile)) => *name == profile.name,
            _ => false,
        };
        is_same && figure.group == self.group
    }
}

/// Returns the memory of a whole GPU in MiB; without a limit if nobody has published it.
pub fn memory_of(group: &GpuGroup) -> u64 {
    let published = group.model.and_then(crate::catalog::Model::memory_gib);
    group
        .memory_mib
        .or(published.map(|gib| gib << 10))
        .unwrap_or(u64::MAX >> 1)
}

/// Returns the compute slices of a whole GPU.
fn slices_of(group: &GpuGroup) -> u32 {
    let slices = group.profiles.iter().map(|profile| profile.slices);
    slices.max().unwrap_or(1)
}

impl<'a> Request<'a> {
    fn any_number(&self) -> Vec<u32> {
        vec![ANY_NUMBER; self.node.groups.len()]
    }

    /// The sizes of devices that programs have figures for.
    fn sizes(&self) -> Vec<Candidate<'a>> {
        let mut sizes = Vec::new();
        for (nth, group) in self.node.groups.iter().enumerate() {
            let all = slices_of(group);
            let whole = Candidate {
                group: nth,
                profile: None,
                slices: all,
                all,
                memory_mib: memory_of(group),
            };
            let plain = group
                .profiles
                .iter()
                .filter(|profile| profile.name.is_plain());
            let instances = plain.map(|profile| Candidate {
                group: nth,
                profile: Some(profile),
                slices: profile.slices,
                all,
                memory_mib: profile.memory_mib,
            });
            sizes.extend(instances.chain([whole]));
        }
        sizes.retain(|size| self.rows.iter().flatten().any(|figure| size.is_of(figure)));
        sizes
    }

    /// The problem with those sizes of devices that may be used.
    pub fn problem(&self, gpus: &[u32], may_use: impl Fn(&Candidate<'a>) -> bool) -> Problem {
        let sizes: Vec<Candidate<'a>> = self.sizes().into_iter().filter(may_use).collect();
        let mut layouts = Vec::new();
        for (nth, group) in self.node.groups.iter().enumerate() {
            layouts.extend(layouts_of(nth, group, &sizes));
        }
        let demands = self.wanted.iter().zip(&self.rows).enumerate();
        Problem {
            gpus: gpus.to_vec(),
            layouts,
            demands: demands
                .map(|(nth, (program, rows))| {
                    let friends =
                        (0..self.wanted.len()).filter(|other| self.are_friends(nth, *other));
                    demand(program, rows, friends.collect(), &sizes)
                })
                .collect(),
            sizes: sizes
                .iter()
                .map(|size| Size {
                    slices: size.slices,
                    memory_mib: size.memory_mib,
                })
                .collect(),
        }
    }

    /// True if two programs may share a device.
    fn are_friends(&self, one: usize, other: usize) -> bool {
        let (one, other) = (&self.wanted[one], &self.wanted[other]);
        let takes = |one: &WantedProgram, other: &WantedProgram| match &one.sharing {
            Sharing::Any => true,
            Sharing::With(names) => names.contains(&other.name),
            Sharing::Alone | Sharing::Own => false,
        };
        one.name != other.name && takes(one, other) && takes(other, one)
    }

    fn advice(&self, problem: &Problem, solution: Solution) -> Advice {
        let sizes = self.sizes();
        let mut gpus: Vec<AdvisedGpu> = Vec::new();
        for (group, devices) in solution.gpus {
            let mut devices: Vec<AdvisedDevice> = devices
                .into_iter()
                .map(|device| AdvisedDevice {
                    profile: sizes[device.size]
                        .profile
                        .map(|profile| profile.name.clone()),
                    programs: device
                        .loads
                        .iter()
                        .map(|load| {
                            self.rows[load.demand][problem.offer(*load).row]
                                .measured
                                .clone()
                        })
                        .collect(),
                })
                .collect();
            let slices = |device: &AdvisedDevice| device.profile.as_ref().map(ProfileName::slices);
            devices.sort_by(|one, other| {
                slices(other)
                    .cmp(&slices(one))
                    .then(one.order().cmp(&other.order()))
            });
            gpus.push(AdvisedGpu { group, devices });
        }
        // Those that are alike are neighbours.
        gpus.sort_by_key(|gpu| {
            let order: Vec<_> = gpu.devices.iter().map(AdvisedDevice::order).collect();
            (
                gpu.group,
                std::cmp::Reverse(order.len()),
                format!("{order:?}"),
            )
        });
        Advice {
            gpus,
            slices: solution.slices,
            free: solution.free,
            least_gpus: solution.least_gpus,
            least_slices: solution.least_slices,
            is_proven: solution.is_proven,
            undivided: self.undivided(),
        }
    }

    /// Returns the number of GPUs if each is one device; `None` if a program has no figures for that.
    fn undivided(&self) -> Option<u32> {
        let problem = self.problem(&self.any_number(), Candidate::is_undivided);
        let can_be_met = problem
            .demands
            .iter()
            .all(|demand| !demand.offers.is_empty());
        can_be_met.then(|| fewest_gpus(&problem))?
    }
}

impl AdvisedDevice {
    /// The order of devices of one size on a GPU.
    fn order(&self) -> (String, Vec<(&str, u32, String)>) {
        let programs = self.programs.iter();
        let programs =
            programs.map(|row| (row.program.as_str(), row.copies, row.threads.to_string()));
        (
            self.profile
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            programs.collect(),
        )
    }
}

/// Returns a number of things in a list.
pub fn number(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Returns every layout of a GPU with devices of these sizes.
fn layouts_of(nth: usize, group: &GpuGroup, sizes: &[Candidate<'_>]) -> Vec<Layout> {
    let own = || sizes.iter().filter(|size| size.group == nth);
    let offered: Vec<GpuInstanceProfile> = own().filter_map(|size| size.profile.cloned()).collect();
    let counts = |count: &dyn Fn(&Candidate<'_>) -> u32| {
        let counts = sizes
            .iter()
            .map(|size| if size.group == nth { count(size) } else { 0 });
        counts.collect::<Vec<u32>>()
    };
    let mut layouts: Vec<Layout> = partitions(&offered, 0)
        .into_iter()
        .map(|partition| Layout {
            group: nth,
            counts: counts(&|size| {
                let mut own = partition.counts.iter();
                let found =
                    own.find(|(profile, _)| size.profile.is_some_and(|size| size.id == profile.id));
                found.map_or(0, |(_, count)| *count)
            }),
            free: partition
                .map(&group.profiles)
                .map_or(0, |map| map.largest_free()),
        })
        .collect();
    if own().any(|size| size.profile.is_none()) {
        let counts = counts(&|size| u32::from(size.profile.is_none()));
        layouts.push(Layout {
            group: nth,
            counts,
            free: 0,
        });
    }
    layouts
}

/// Returns what a program wants, with those of its figures that no others make needless.
fn demand(
    program: &WantedProgram,
    rows: &[Figure],
    friends: Vec<usize>,
    sizes: &[Candidate<'_>],
) -> Demand {
    let mut offers: Vec<Offer> = Vec::new();
    for (row, figure) in rows.iter().enumerate() {
        let Some(size) = sizes.iter().position(|size| size.is_of(figure)) else {
            continue;
        };
        let measured = &figure.measured;
        let tenths = measured
            .threads
            .tenths()
            .saturating_mul(measured.copies)
            .min(PARTS);
        let wanted_mib = program.memory_mib * u64::from(measured.copies);
        offers.push(Offer {
            size,
            parts: if friends.is_empty() { PARTS } else { tenths },
            memory_mib: measured.memory_mib.unwrap_or(0).max(wanted_mib),
            supply: match program.amount {
                Amount::Rate(rate) => measured.throughput / rate,
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
                && (other.memory_mib <= one.memory_mib || one.parts == PARTS)
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
