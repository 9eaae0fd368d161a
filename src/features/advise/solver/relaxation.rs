//! The linear program of all GPUs: layouts have devices, devices have loads, and choices of loads meet demands. Any number may
//! be taken of each, also a part. Layouts are known; fillings of shared devices and choices are found as prices ask for them.

use std::collections::BTreeMap;

use super::knapsack::{Covering, Filling, SupplySteps};
use super::simplex::{LpColumn, Simplex};
use super::{Load, PARTS, PackingProblem};

/// The cost that is to be least, and what a solution must keep.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// True if slices are counted, in units of which all layouts have a whole number; and not GPUs.
    pub by_slices: bool,
    /// The most GPUs.
    pub gpus: u32,
    /// The least size of a free block on one of the GPUs.
    pub free: u32,
}

/// An activity of the linear program: something of which a number is taken.
#[derive(Clone, Debug)]
pub enum Activity {
    /// A GPU with a layout.
    Gpu(usize),
    /// A device of a size that programs share.
    Shared(usize, Vec<Load>),
    /// A number of each offer that meets a demand.
    Choice(usize, Vec<u32>),
}

/// Something that a limit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    Activity(usize),
    Load(Load),
}

/// A limit to a number: at least, or at most.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    Least(u32),
    Most(u32),
}

pub type CountLimits = Vec<(Counted, Limit)>;

/// The solution of a linear program.
pub struct Relaxed {
    /// No solution costs less; infinite if there is none.
    pub bound: f64,
    /// The number of each activity.
    pub numbers: Vec<f64>,
    /// False if demands are not met, although it is not proven that they cannot be.
    pub is_met: bool,
}

pub struct Relaxation<'a> {
    pub problem: &'a PackingProblem,
    pub activities: Vec<Activity>,
    slices_unit: u32,
    /// True for sizes of devices that programs share.
    is_shared: Vec<bool>,
    steps: Vec<SupplySteps>,
    /// The row of each load that does not fill a device.
    loads: BTreeMap<Load, usize>,
    /// The first rows of demands and of groups, and those of all GPUs and of the free block.
    demands: usize,
    groups: usize,
    /// The work that was done, in multiplications or so, and the most that may be.
    pub work: u64,
    most_work: u64,
}

impl<'a> Relaxation<'a> {
    pub fn new(problem: &'a PackingProblem, most_work: u64) -> Self {
        let mut loads = BTreeMap::new();
        let mut is_shared = vec![false; problem.sizes.len()];
        for (demand, of) in problem.demands.iter().enumerate() {
            let offers = of.offers.iter().enumerate();
            for (offer, of) in offers.filter(|(_, offer)| offer.parts < PARTS) {
                loads.insert(Load { demand, offer }, problem.sizes.len() + loads.len());
                is_shared[of.size] = true;
            }
        }
        let demands = problem.sizes.len() + loads.len();
        Self {
            problem,
            activities: (0..problem.layouts.len()).map(Activity::Gpu).collect(),
            is_shared,
            slices_unit: problem.slices_unit().max(1),
            steps: problem
                .demands
                .iter()
                .map(SupplySteps::for_demand)
                .collect(),
            loads,
            demands,
            groups: demands + problem.demands.len(),
            work: 0,
            most_work,
        }
    }

    /// The row of a load: that of its device, if it fills one.
    fn row_of(&self, load: Load) -> usize {
        self.loads
            .get(&load)
            .copied()
            .unwrap_or(self.problem.offer(load).size)
    }

    /// Returns what an activity costs, and what it adds to each row.
    fn activity_column(&self, activity: &Activity, goal: &Goal) -> LpColumn {
        let all = self.groups + self.problem.gpus.len();
        let mut entries = Vec::new();
        let mut cost = 0.0;
        match activity {
            Activity::Gpu(layout) => {
                let layout = &self.problem.layouts[*layout];
                let counts = layout
                    .counts
                    .iter()
                    .enumerate()
                    .filter(|(_, count)| **count > 0);
                entries.extend(counts.map(|(size, count)| (size, f64::from(*count))));
                entries.extend([(self.groups + layout.group, -1.0), (all, -1.0)]);
                if layout.free >= goal.free {
                    entries.push((all + 1, 1.0));
                }
                cost = if goal.by_slices {
                    f64::from(self.problem.total_slices(&layout.counts) / self.slices_unit)
                } else {
                    1.0
                };
            }
            Activity::Shared(size, loads) => {
                entries.push((*size, -1.0));
                entries.extend(loads.iter().map(|load| (self.loads[load], 1.0)));
            }
            Activity::Choice(demand, counts) => {
                entries.push((self.demands + demand, 1.0));
                for (offer, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                    let row = self.row_of(Load {
                        demand: *demand,
                        offer,
                    });
                    match entries.iter_mut().find(|(other, _)| *other == row) {
                        Some((_, entry)) => *entry -= f64::from(*count),
                        None => entries.push((row, -f64::from(*count))),
                    }
                }
            }
        }
        LpColumn { cost, entries }
    }

    fn row_minima(&self, goal: &Goal) -> Vec<f64> {
        let mut least = vec![0.0; self.demands];
        least.extend(self.problem.demands.iter().map(|_| 1.0));
        least.extend(self.problem.gpus.iter().map(|gpus| -f64::from(*gpus)));
        least.extend([-f64::from(goal.gpus), f64::from(u8::from(goal.free > 0))]);
        least
    }

    /// Solves it with limits.
    pub fn solve(&mut self, goal: &Goal, limits: &CountLimits) -> Relaxed {
        let mut program = LinearProgram::new(self, goal, limits);
        let mut bound: f64 = 0.0;
        loop {
            let most_work = self.most_work.saturating_sub(self.work);
            if !program.simplex.minimize(&program.columns, most_work) {
                self.work += program.simplex.work;
                return Relaxed {
                    bound,
                    numbers: Vec::new(),
                    is_met: false,
                };
            }
            let (found, lack) = self.find_activities(&program);
            bound = bound.max(program.dual_objective() - lack);
            if found.is_empty() {
                return self.extract_solution(&program, bound);
            }
            for activity in found {
                program.add_column(self.activity_column(&activity, goal), self.activities.len());
                self.activities.push(activity);
            }
        }
    }

    /// Returns the activities that make it cheaper, and by how much the prices may be too high altogether.
    fn find_activities(&mut self, program: &LinearProgram) -> (Vec<Activity>, f64) {
        let prices = &program.simplex.prices;
        let mut found = Vec::new();
        let (mut worths, mut lack) = (0.0, 0.0);
        for (nth, demand) in self.problem.demands.iter().enumerate() {
            let price = |offer| prices[self.row_of(Load { demand: nth, offer })].max(0.0);
            let own: Vec<f64> = (0..demand.offers.len()).map(price).collect();
            let worth = prices[self.demands + nth];
            let ranges = &program.bounds.loads[nth];
            let steps = &self.steps[nth];
            let covering = Covering::find_cheapest((demand, steps), &own, ranges, worth);
            self.work += covering.states * 8 + steps.work_per_search();
            worths += covering.least.min(worth);
            lack += worth - covering.least.min(worth);
            found.extend(covering.best.map(|counts| Activity::Choice(nth, counts)));
        }
        // At this part of their prices no loads are worth more than their device.
        let mut part: f64 = 1.0;
        for size in (0..self.problem.sizes.len()).filter(|size| self.is_shared[*size]) {
            let limited = program.bounds.upper_limits();
            let known: Vec<&[Load]> = limited
                .filter_map(|(activity, _)| match &self.activities[activity] {
                    Activity::Shared(of, loads) if *of == size => Some(loads.as_slice()),
                    _ => None,
                })
                .collect();
            let price = |load| prices[self.loads[&load]];
            let limit = prices[size].max(0.0);
            let mut filling = Filling::find_best(self.problem, size, price, &known, limit);
            self.work += filling.work_done();
            if filling.upper_bound() > limit {
                part = part.min(limit / filling.upper_bound());
            }
            found.extend(
                filling
                    .best
                    .take()
                    .map(|loads| Activity::Shared(size, loads)),
            );
        }
        (found, lack + (1.0 - part) * worths)
    }

    fn extract_solution(&mut self, program: &LinearProgram, bound: f64) -> Relaxed {
        let simplex = &program.simplex;
        self.work += simplex.work;
        let mut numbers = vec![0.0; self.activities.len()];
        for (activity, number) in program
            .activities
            .iter()
            .zip(simplex.column_values(program.columns.len()))
        {
            numbers[*activity] += number;
        }
        for (activity, (least, _)) in &program.bounds.activities {
            numbers[*activity] += f64::from(*least);
        }
        self.remove_surplus(&mut numbers);
        let is_met = simplex.total_shortfall() < 1e-4;
        Relaxed {
            bound,
            numbers,
            is_met,
        }
    }

    /// Lowers the numbers of the choices of each demand to 1 in all. Only then does a limit to the loads of each choice limit
    /// those of all choices.
    fn remove_surplus(&self, numbers: &mut [f64]) {
        let mut all = vec![0.0; self.problem.demands.len()];
        for (activity, number) in self.activities.iter().zip(&*numbers) {
            if let Activity::Choice(demand, _) = activity {
                all[*demand] += number;
            }
        }
        for (activity, number) in self.activities.iter().zip(numbers) {
            if let Activity::Choice(demand, _) = activity {
                *number /= all[*demand].max(1.0);
            }
        }
    }
}

/// The least and the most of something.
pub type Range = (u32, u32);

const UNLIMITED: Range = (0, u32::MAX);

/// All limits together.
struct Bounds {
    /// Those of each offer, for each demand.
    loads: Vec<Vec<Range>>,
    activities: BTreeMap<usize, Range>,
}

/// The columns that limits allow.
struct LinearProgram {
    columns: Vec<LpColumn>,
    /// The activity of each column.
    activities: Vec<usize>,
    least: Vec<f64>,
    simplex: Simplex,
    bounds: Bounds,
    /// The cost of the least of each activity.
    cost: f64,
}

impl Bounds {
    fn from_limits(problem: &PackingProblem, limits: &CountLimits) -> Self {
        let mut bounds = Self {
            loads: problem
                .demands
                .iter()
                .map(|demand| vec![UNLIMITED; demand.offers.len()])
                .collect(),
            activities: BTreeMap::new(),
        };
        for (counted, limit) in limits {
            let (least, most) = match counted {
                Counted::Load(load) => &mut bounds.loads[load.demand][load.offer],
                Counted::Activity(activity) => {
                    bounds.activities.entry(*activity).or_insert(UNLIMITED)
                }
            };
            match limit {
                Limit::Least(count) => *least = (*least).max(*count),
                Limit::Most(count) => *most = (*most).min(*count),
            }
        }
        bounds
    }

    /// True if a choice is within them.
    fn allows_activity(&self, activity: &Activity) -> bool {
        let Activity::Choice(demand, counts) = activity else {
            return true;
        };
        let mut own = counts.iter().zip(&self.loads[*demand]);
        own.all(|(count, (least, most))| (least..=most).contains(&count))
    }

    /// The activities that have a limit from above, with what they may have beyond their least.
    fn upper_limits(&self) -> impl Iterator<Item = (usize, u32)> {
        self.activities
            .iter()
            .filter(|(_, (_, most))| *most < u32::MAX)
            .map(|(activity, (least, most))| (*activity, most - least))
    }
}

impl LinearProgram {
    fn new(relaxation: &Relaxation<'_>, goal: &Goal, limits: &CountLimits) -> Self {
        let bounds = Bounds::from_limits(relaxation.problem, limits);
        let mut rows = relaxation.row_minima(goal);
        let mut cost = 0.0;
        for (activity, (least, _)) in &bounds.activities {
            let column = relaxation.activity_column(&relaxation.activities[*activity], goal);
            for (row, entry) in column.entries {
                rows[row] -= f64::from(*least) * entry;
            }
            cost += f64::from(*least) * column.cost;
        }
        let mut own_rows = BTreeMap::new();
        for (activity, most) in bounds.upper_limits() {
            own_rows.insert(activity, rows.len());
            rows.push(-f64::from(most));
        }
        let mut program = Self {
            columns: Vec::new(),
            activities: Vec::new(),
            simplex: Simplex::new(&rows),
            least: rows,
            cost,
            bounds,
        };
        for (nth, activity) in relaxation.activities.iter().enumerate() {
            if program.bounds.allows_activity(activity) {
                let mut column = relaxation.activity_column(activity, goal);
                let own = own_rows.get(&nth);
                column.entries.extend(own.map(|row| (*row, -1.0)));
                program.add_column(column, nth);
            }
        }
        program
    }

    /// Returns what all that is needed is worth by the prices.
    fn dual_objective(&self) -> f64 {
        let rows = self.least.iter().zip(&self.simplex.prices);
        self.cost
            + rows
                .map(|(least, price)| least * price.max(0.0))
                .sum::<f64>()
    }

    fn add_column(&mut self, column: LpColumn, activity: usize) {
        self.columns.push(column);
        self.activities.push(activity);
    }
}
