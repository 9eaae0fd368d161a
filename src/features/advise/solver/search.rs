//! The smallest hardware that meets all demands: fewest GPUs, then fewest slices, then the largest free block.
//!
//! The linear program of all GPUs ([`Relaxation`]) proves how much is needed at least. Where it takes parts of something, the
//! search sets a limit: at least the next whole number first, then less than that. So what it does not find does not exist,
//! unless it has done too much work. Work is counted, and not time: the answer is always the same.
//!
//! A general solver of integer programs would need every filling of a device that programs share as a column, of which there are
//! far too many; and those in Rust do not give the dual prices by which the few that matter are found.

use std::collections::{BTreeMap, BTreeSet};

use super::knapsack::SUPPLY_TOLERANCE;
use super::relaxation::{Activity, CountLimits, Counted, Goal, Limit, Relaxation, Relaxed};
use super::{FilledDevice, Load, PARTS, PackingProblem};

/// The usual work of the whole search, less than a second's worth. A first solution may take three times as much.
const USUAL_WORK: u64 = 1_100_000_000;

/// Numbers that differ by less are equal.
const EQUALITY_TOLERANCE: f64 = 1e-3;

/// A first solution takes the next whole numbers of a quarter at once of what is not whole. Where it is not the best, others
/// are tried.
const PARTS_AT_ONCE: [usize; 4] = [4, 8, 2, 16];

/// Devices on GPUs: the group of each, and its devices.
type FilledGpus = Vec<(usize, Vec<FilledDevice>)>;

/// GPUs with devices, on which everything wanted runs.
#[derive(Clone, Debug)]
pub struct Solution {
    /// In order, so that those that are alike are neighbors.
    pub gpus: FilledGpus,
    pub slices: u32,
    /// The largest free block on one of these GPUs.
    pub free: u32,
    /// The number of GPUs that was proven to be needed, and of slices on that many GPUs as the solution has.
    pub least_gpus: u32,
    pub least_slices: u32,
    /// True if no solution has fewer GPUs, as many and fewer slices, or as many of both and a larger free block.
    pub is_proven: bool,
}

/// The result of a search.
pub enum SearchResult<T> {
    Solution(T),
    /// There is none.
    None,
    /// None was found before a limit was reached.
    Unknown,
}

/// Returns the smallest hardware.
pub fn find_smallest(problem: &PackingProblem) -> SearchResult<Solution> {
    let mut search = BranchAndBound::new(problem);
    let (mut gpus, least_gpus) = match search.fewest_gpus() {
        (Some(gpus), least) => (gpus, least),
        (None, least) if least > problem.gpus.iter().sum() => return SearchResult::None,
        (None, _) => return SearchResult::Unknown,
    };
    let unit = problem.slices_unit();
    let mut goal = Goal {
        by_slices: true,
        gpus: saturating_u32(&gpus),
        free: 0,
    };
    let (fewer, least_slices) = search.find_cheapest(&goal, search.total_slices(&gpus) / unit - 1);
    gpus = fewer.unwrap_or(gpus);
    goal.gpus = saturating_u32(&gpus);
    let slices = search.total_slices(&gpus);
    let least_slices = (least_slices * unit).max(least_gpus * search.smallest_layout_slices());
    let mut is_proven = least_gpus >= saturating_u32(&gpus) && least_slices >= slices;
    let free = search.largest_free_block(&gpus);
    let larger: BTreeSet<u32> = problem
        .layouts
        .iter()
        .map(|layout| layout.free)
        .filter(|block| *block > free)
        .collect();
    for block in larger.into_iter().rev() {
        goal.free = block;
        match search.find_within(&goal, slices / unit) {
            SearchResult::Solution(found) => {
                gpus = found;
                break;
            }
            SearchResult::None => {}
            SearchResult::Unknown => is_proven = false,
        }
    }
    for (_, devices) in &mut gpus {
        devices.sort();
    }
    gpus.sort();
    SearchResult::Solution(Solution {
        slices: search.total_slices(&gpus),
        free: search.largest_free_block(&gpus),
        gpus,
        least_gpus,
        least_slices,
        is_proven,
    })
}

/// Returns the fewest GPUs that are known to do.
pub fn fewest_gpus(problem: &PackingProblem) -> Option<u32> {
    let (gpus, _) = BranchAndBound::new(problem).fewest_gpus();
    gpus.map(|gpus| saturating_u32(&gpus))
}

fn saturating_u32<T>(list: &[T]) -> u32 {
    u32::try_from(list.len()).unwrap_or(u32::MAX)
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number of GPUs or slices"
)]
pub fn to_count(number: f64) -> u32 {
    number.max(0.0) as u32
}

/// Returns what a number is beyond a whole one.
fn fractional_part(number: f64) -> f64 {
    number - number.floor()
}

struct BranchAndBound<'a> {
    problem: &'a PackingProblem,
    relaxation: Relaxation<'a>,
    /// The work after which all searches end.
    work: u64,
    /// The work after which a search ends.
    budget: u64,
}

impl<'a> BranchAndBound<'a> {
    fn new(problem: &'a PackingProblem) -> Self {
        let work = USUAL_WORK.saturating_mul(problem.effort.into());
        Self {
            problem,
            relaxation: Relaxation::new(problem, work.saturating_mul(3)),
            work,
            budget: 0,
        }
    }

    /// Returns the fewest GPUs, and how many are needed whatever is chosen.
    fn fewest_gpus(&mut self) -> (Option<FilledGpus>, u32) {
        let all = self.problem.gpus.iter().sum();
        let goal = Goal {
            by_slices: false,
            gpus: all,
            free: 0,
        };
        let (found, least) = self.find_cheapest(&goal, all);
        if found.as_ref().map_or(all + 1, |gpus| saturating_u32(gpus)) <= least {
            return (found, least);
        }
        // If programs share no devices, a solution is found at once.
        let apart = self.problem.without_sharing();
        let (other, _) = BranchAndBound::new(&apart).find_cheapest(&goal, all);
        let both = found.into_iter().chain(other);
        (both.min_by_key(Vec::len), least)
    }

    /// Returns the solution that costs least, and the cost that was proven to be needed. One that costs more than a limit does
    /// not count.
    fn find_cheapest(&mut self, goal: &Goal, most: u32) -> (Option<FilledGpus>, u32) {
        let root = self.relaxation.solve(goal, &CountLimits::new());
        let mut least = to_count((root.bound - EQUALITY_TOLERANCE).ceil()).clamp(1, most + 1);
        if least > most {
            return (None, least);
        }
        let mut best = None;
        let mut limit = most + 1;
        for part in PARTS_AT_ONCE {
            let gpus = self.dive(goal, part);
            let cost = gpus.as_ref().map_or(limit, |gpus| self.cost_of(goal, gpus));
            if cost < limit {
                (best, limit) = (gpus, cost);
            }
            if limit == least || self.relaxation.work > self.work {
                break;
            }
        }
        let (mut cost, mut is_proven) = (least, true);
        while cost < limit && self.relaxation.work < self.work {
            match self.find_within(goal, cost) {
                SearchResult::Solution(gpus) => return (Some(gpus), least),
                SearchResult::None => cost += 1,
                SearchResult::Unknown => {
                    is_proven = false;
                    cost += 1 + cost / 32;
                }
            }
            if is_proven {
                least = cost;
            }
        }
        (best, least)
    }

    /// Takes the next whole numbers of a part of what is not whole, until all are whole.
    fn dive(&mut self, goal: &Goal, part_at_once: usize) -> Option<FilledGpus> {
        let mut limits = CountLimits::new();
        loop {
            let relaxed = self.relaxation.solve(goal, &limits);
            if !relaxed.is_met {
                return None;
            }
            let mut parts = self.fractional_counts(&relaxed);
            if parts.is_empty() {
                return self.fill_gpus(&relaxed);
            }
            parts.sort_by(|(_, one), (_, other)| {
                fractional_part(*other).total_cmp(&fractional_part(*one))
            });
            parts.truncate(1 + parts.len() / part_at_once);
            let least = |(counted, number)| (counted, Limit::Least(to_count(number) + 1));
            limits.extend(parts.into_iter().map(least));
        }
    }

    /// Searches for a solution that costs no more than a limit. It takes at most half of the work that is left.
    fn find_within(&mut self, goal: &Goal, most: u32) -> SearchResult<FilledGpus> {
        let work = self.relaxation.work;
        self.budget = work + self.work.saturating_sub(work) / 2;
        let mut is_complete = true;
        match self.explore_branch(goal, f64::from(most), &mut Vec::new(), &mut is_complete) {
            Some(gpus) => SearchResult::Solution(gpus),
            None if is_complete => SearchResult::None,
            None => SearchResult::Unknown,
        }
    }

    fn explore_branch(
        &mut self,
        goal: &Goal,
        most: f64,
        limits: &mut CountLimits,
        is_complete: &mut bool,
    ) -> Option<FilledGpus> {
        if self.relaxation.work > self.budget {
            *is_complete = false;
            return None;
        }
        let relaxed = self.relaxation.solve(goal, limits);
        if relaxed.bound > most + EQUALITY_TOLERANCE {
            return None;
        }
        if !relaxed.is_met {
            *is_complete = false;
            return None;
        }
        // The one that lacks least to the next whole number.
        let next = self
            .fractional_counts(&relaxed)
            .into_iter()
            .max_by(|(_, one), (_, other)| {
                fractional_part(*one).total_cmp(&fractional_part(*other))
            });
        let Some((counted, number)) = next else {
            // Where prices are not exact, it may cost more.
            let gpus = self
                .fill_gpus(&relaxed)
                .filter(|gpus| f64::from(self.cost_of(goal, gpus)) <= most);
            *is_complete &= gpus.is_some();
            return gpus;
        };
        for limit in [
            Limit::Least(to_count(number) + 1),
            Limit::Most(to_count(number)),
        ] {
            limits.push((counted, limit));
            let found = self.explore_branch(goal, most, limits, is_complete);
            limits.pop();
            if found.is_some() || self.relaxation.work > self.budget {
                *is_complete &= found.is_some();
                return found;
            }
        }
        None
    }

    /// Returns the numbers that are not whole.
    fn fractional_counts(&self, relaxed: &Relaxed) -> Vec<(Counted, f64)> {
        let mut parts = Vec::new();
        let activities = self.relaxation.activities.iter().zip(&relaxed.numbers);
        for (nth, (activity, number)) in activities.enumerate() {
            if !matches!(activity, Activity::Choice(..)) {
                parts.push((Counted::Activity(nth), *number));
            }
        }
        for (load, number) in self.load_numbers(relaxed) {
            parts.push((Counted::Load(load), number));
        }
        parts.retain(|(_, number)| {
            (EQUALITY_TOLERANCE..1.0 - EQUALITY_TOLERANCE).contains(&fractional_part(*number))
        });
        parts
    }

    fn cost_of(&self, goal: &Goal, gpus: &FilledGpus) -> u32 {
        if goal.by_slices {
            self.total_slices(gpus) / self.problem.slices_unit()
        } else {
            saturating_u32(gpus)
        }
    }

    /// Returns the number of each load.
    fn load_numbers(&self, relaxed: &Relaxed) -> BTreeMap<Load, f64> {
        let mut numbers = BTreeMap::new();
        for (activity, number) in self.relaxation.activities.iter().zip(&relaxed.numbers) {
            let Activity::Choice(demand, counts) = activity else {
                continue;
            };
            for (offer, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                let demand = *demand;
                *numbers.entry(Load { demand, offer }).or_insert(0.0) += number * f64::from(*count);
            }
        }
        numbers
    }

    /// Returns the whole number of each load, without what is not needed; `None` if demands are not met.
    fn needed_loads(&self, relaxed: &Relaxed) -> Option<BTreeMap<Load, u32>> {
        let mut needed: BTreeMap<Load, u32> = self
            .load_numbers(relaxed)
            .into_iter()
            .map(|(load, number)| (load, to_count(number + 0.5)))
            .collect();
        let mut supplies = vec![0.0; self.problem.demands.len()];
        for (load, count) in &needed {
            supplies[load.demand] += f64::from(*count) * self.problem.offer(*load).supply;
        }
        for (load, count) in needed.iter_mut().rev() {
            let supply = self.problem.offer(*load).supply;
            while *count > 0 && supplies[load.demand] - supply > 1.0 - SUPPLY_TOLERANCE {
                *count -= 1;
                supplies[load.demand] -= supply;
            }
        }
        supplies
            .iter()
            .all(|supply| *supply > 1.0 - 2.0 * SUPPLY_TOLERANCE)
            .then_some(needed)
    }

    /// Returns the devices of each size for loads; `None` if there are too few.
    fn devices_for_loads(
        &self,
        relaxed: &Relaxed,
        mut needed: BTreeMap<Load, u32>,
    ) -> Option<Vec<Vec<FilledDevice>>> {
        let mut devices = vec![Vec::new(); self.problem.sizes.len()];
        for (load, count) in &mut needed {
            let offer = self.problem.offer(*load);
            if offer.parts >= PARTS {
                let device = FilledDevice {
                    size: offer.size,
                    loads: vec![*load],
                };
                let count = std::mem::take(count) as usize;
                devices[offer.size].extend(std::iter::repeat_n(device, count));
            }
        }
        for (activity, count) in self.whole_activities(relaxed) {
            let Activity::Shared(size, loads) = activity else {
                continue;
            };
            for _ in 0..count {
                let mut loads = loads.clone();
                loads.retain(|load| match needed.get_mut(load) {
                    None | Some(0) => false,
                    Some(needed) => {
                        *needed -= 1;
                        true
                    }
                });
                if !loads.is_empty() {
                    devices[*size].push(FilledDevice { size: *size, loads });
                }
            }
        }
        needed
            .values()
            .all(|needed| *needed == 0)
            .then_some(devices)
    }

    /// Puts everything on GPUs, where the numbers of all activities are whole.
    fn fill_gpus(&self, relaxed: &Relaxed) -> Option<FilledGpus> {
        let mut devices = self.devices_for_loads(relaxed, self.needed_loads(relaxed)?)?;
        let mut gpus = FilledGpus::new();
        for (activity, count) in self.whole_activities(relaxed) {
            let Activity::Gpu(layout) = activity else {
                continue;
            };
            let layout = &self.problem.layouts[*layout];
            for _ in 0..count {
                let mut own = Vec::new();
                for (devices, count) in devices.iter_mut().zip(&layout.counts) {
                    own.extend(devices.split_off(devices.len().saturating_sub(*count as usize)));
                }
                if !own.is_empty() {
                    gpus.push((layout.group, own));
                }
            }
        }
        devices.iter().all(Vec::is_empty).then_some(gpus)
    }

    fn whole_activities(&self, relaxed: &Relaxed) -> impl Iterator<Item = (&Activity, u32)> {
        let activities = self.relaxation.activities.iter().zip(&relaxed.numbers);
        activities.map(|(activity, number)| (activity, to_count(number + 0.5)))
    }

    fn total_slices(&self, gpus: &FilledGpus) -> u32 {
        gpus.iter()
            .flat_map(|(_, devices)| devices)
            .map(|device| self.problem.sizes[device.size].slices)
            .sum()
    }

    /// Returns the slices of the smallest layout.
    fn smallest_layout_slices(&self) -> u32 {
        self.problem
            .layouts
            .iter()
            .map(|layout| self.problem.total_slices(&layout.counts))
            .min()
            .unwrap_or(0)
    }

    /// Returns the largest free block on one of these GPUs.
    fn largest_free_block(&self, gpus: &FilledGpus) -> u32 {
        let blocks = gpus.iter().filter_map(|(group, devices)| {
            let mut counts = vec![0; self.problem.sizes.len()];
            for device in devices {
                counts[device.size] += 1;
            }
            Some(
                self.problem
                    .layouts
                    .iter()
                    .find(|layout| layout.group == *group && layout.counts == counts)?
                    .free,
            )
        });
        blocks.max().unwrap_or(0)
    }
}
