//! The two questions that prices of devices and loads answer exactly: the cheapest way to meet a demand, and the loads that
//! are worth most together on one device.

use super::relaxation::Range;
use super::search::to_count;
use super::simplex::OPTIMALITY_TOLERANCE;
use super::{Demand, Load, PARTS, PackingProblem, greatest_common_divisor};

/// The most steps of a demand in which its least cost is computed.
const MAX_STEPS: u32 = 1024;

/// The most states of one search.
const MAX_STATES: u64 = 20_000;

/// The gain that makes something worth finding: more than a step of the simplex method, so that it is not found again.
const WORTHWHILE_GAIN: f64 = 2.0 * OPTIMALITY_TOLERANCE;

/// A demand is met by this much, since supplies are not exact in binary.
pub const SUPPLY_TOLERANCE: f64 = 1e-9;

/// The supplies of a demand in steps, each rounded up: costs in steps are never too high.
pub struct SupplySteps {
    supplies: Vec<u32>,
    all: u32,
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "from 0 to the steps of a demand"
)]
fn round_up(part: f64, all: u32, tolerance: f64) -> u32 {
    (part.min(1.0) * f64::from(all) - tolerance).ceil().max(0.0) as u32
}

impl SupplySteps {
    /// Chooses the number of steps with which the least is added in rounding.
    pub fn for_demand(demand: &Demand) -> Self {
        let supplies = |all: u32| {
            demand
                .offers
                .iter()
                .map(move |offer| round_up(offer.supply, all, 1e-7))
        };
        let error = |all: &u32| {
            let exact = demand
                .offers
                .iter()
                .map(|offer| offer.supply.min(1.0) * f64::from(*all));
            supplies(*all)
                .zip(exact)
                .map(|(steps, exact)| f64::from(steps) / exact)
                .fold(1.0, f64::max)
        };
        let all = (1..=MAX_STEPS)
            .min_by(|one, other| error(one).total_cmp(&(error(other) + 1e-9)))
            .unwrap_or(1);
        Self {
            supplies: supplies(all).collect(),
            all,
        }
    }

    pub fn work_per_search(&self) -> u64 {
        u64::from(self.all) * self.supplies.len() as u64
    }

    /// Returns the least cost of each number of steps with some offers.
    fn least_costs(&self, prices: &[f64], offers: &[usize]) -> Vec<f64> {
        let mut costs = vec![0.0; self.all as usize + 1];
        for step in 1..costs.len() {
            let least = offers
                .iter()
                .map(|nth| prices[*nth] + costs[step.saturating_sub(self.supplies[*nth] as usize)]);
            costs[step] = least.fold(f64::INFINITY, f64::min);
        }
        costs
    }
}

/// The search for the cheapest numbers of offers that meet a demand.
pub struct Covering<'a> {
    demand: &'a Demand,
    steps: &'a SupplySteps,
    /// The price of each offer.
    prices: &'a [f64],
    /// The least and the most of each offer.
    ranges: &'a [Range],
    /// The offers of which there may be more than the least, the cheapest for its supply first.
    order: Vec<usize>,
    costs: Vec<f64>,
    counts: Vec<u32>,
    pub best: Option<Vec<u32>>,
    /// The cost that is to be undercut, then that of the best; and the least that is possible.
    pub least: f64,
    pub states: u64,
}

impl<'a> Covering<'a> {
    /// Searches for numbers of offers, at least and at most so many of each, that cost less than a limit.
    pub fn find_cheapest(
        (demand, steps): (&'a Demand, &'a SupplySteps),
        prices: &'a [f64],
        ranges: &'a [Range],
        limit: f64,
    ) -> Self {
        let may_be_more = |nth: &usize| ranges[*nth].0 < ranges[*nth].1;
        let mut order: Vec<usize> = (0..prices.len()).filter(may_be_more).collect();
        let per_supply = |nth: usize| prices[nth] / demand.offers[nth].supply;
        order.sort_by(|one, other| per_supply(*one).total_cmp(&per_supply(*other)));
        let mut covering = Self {
            demand,
            steps,
            prices,
            ranges,
            costs: steps.least_costs(prices, &order),
            order,
            counts: ranges.iter().map(|(least, _)| *least).collect(),
            best: None,
            least: limit,
            states: 0,
        };
        let (mut cost, mut left) = (0.0, 1.0);
        for ((least, _), (price, offer)) in ranges.iter().zip(prices.iter().zip(&demand.offers)) {
            cost += f64::from(*least) * price;
            left -= f64::from(*least) * offer.supply;
        }
        let least = cost
            + covering
                .step_bound(left)
                .max(covering.fractional_bound(0, left));
        if least <= limit - WORTHWHILE_GAIN {
            covering.try_counts(0, left, cost);
        }
        if covering.states > MAX_STATES {
            covering.least = covering.least.min(least);
        }
        covering
    }

    /// Returns the least cost of what is left of the demand, in steps.
    fn step_bound(&self, left: f64) -> f64 {
        self.costs[round_up(left, self.steps.all, 1e-5) as usize]
    }

    /// Returns the least cost of what is left of the demand with the offers from a place on, or with parts of some.
    fn fractional_bound(&self, from: usize, left: f64) -> f64 {
        let (mut cost, mut left) = (0.0, left - SUPPLY_TOLERANCE);
        for nth in &self.order[from..] {
            let supply = self.demand.offers[*nth].supply;
            let more = f64::from(self.ranges[*nth].1 - self.counts[*nth]);
            let number = more.min(left / supply);
            cost += number.max(0.0) * self.prices[*nth];
            if number < more {
                return cost;
            }
            left -= number * supply;
        }
        if left > 0.0 { f64::INFINITY } else { cost }
    }

    /// Tries every number of the offer at a place, the most that is of use first.
    fn try_counts(&mut self, place: usize, left: f64, cost: f64) {
        if left <= SUPPLY_TOLERANCE {
            self.least = cost;
            self.best = Some(self.counts.clone());
            return;
        }
        let Some(nth) = self.order.get(place).copied() else {
            return;
        };
        let (supply, least) = (self.demand.offers[nth].supply, self.counts[nth]);
        let enough =
            to_count(((left - SUPPLY_TOLERANCE) / supply).ceil()).min(self.ranges[nth].1 - least);
        for more in (0..=enough).rev() {
            let left = left - f64::from(more) * supply;
            let cost = cost + f64::from(more) * self.prices[nth];
            let in_parts = cost + self.fractional_bound(place + 1, left);
            self.states += 1;
            let limit = self.least - WORTHWHILE_GAIN;
            // Below what is enough, fewer of it cost even more.
            if self.states > MAX_STATES || more < enough && in_parts > limit {
                break;
            }
            if in_parts.max(cost + self.step_bound(left)) <= limit {
                self.counts[nth] = least + more;
                self.try_counts(place + 1, left, cost);
            }
        }
        self.counts[nth] = least;
    }
}

/// A load that does not fill a device, and its price.
struct Item {
    load: Load,
    needs: Needs,
    memory_mib: u64,
    price: f64,
}

/// The parts of a load and its memory, in units that are rounded down, and its copies.
type Needs = [usize; 3];

/// The most units of memory of a device.
const MAX_MEMORY_UNITS: u64 = 128;

/// The search for the loads that are worth most together on a device of a size.
pub struct Filling<'a> {
    problem: &'a PackingProblem,
    memory_mib: u64,
    /// The loads of each program.
    programs: Vec<Vec<Item>>,
    /// The most that the programs from each on are worth in each room, by each need alone and whatever their friends.
    worths: [Vec<Vec<f64>>; 3],
    /// Loads that are not to be found again.
    known: &'a [&'a [Load]],
    chosen: Vec<Load>,
    pub best: Option<Vec<Load>>,
    /// The worth that is to be exceeded, then that of the best.
    worth: f64,
    /// The most that loads can be worth.
    most: f64,
    states: u64,
}

impl<'a> Filling<'a> {
    /// Searches for loads that are worth more than a limit.
    pub fn find_best(
        problem: &'a PackingProblem,
        size: usize,
        price: impl Fn(Load) -> f64,
        known: &'a [&'a [Load]],
        limit: f64,
    ) -> Self {
        let memory_mib = problem.sizes[size].memory_mib;
        let memory_unit = memory_mib.div_ceil(MAX_MEMORY_UNITS).max(1);
        let in_units = |mib: u64| usize::try_from(mib / memory_unit).unwrap_or(0);
        let mut programs: Vec<Vec<Item>> = Vec::new();
        let mut unit = PARTS;
        for (demand, of) in problem.demands.iter().enumerate() {
            let mut items = Vec::new();
            for (offer, of) in of.offers.iter().enumerate() {
                let load = Load { demand, offer };
                if of.size == size && of.parts < PARTS && price(load) > WORTHWHILE_GAIN {
                    unit = greatest_common_divisor(unit, of.parts);
                    items.push(Item {
                        load,
                        // A load alone fits, whatever its memory.
                        needs: [
                            of.parts as usize,
                            in_units(of.memory_mib.min(memory_mib)),
                            of.copies as usize,
                        ],
                        memory_mib: of.memory_mib,
                        price: price(load),
                    });
                }
            }
            if !items.is_empty() {
                programs.push(items);
            }
        }
        for item in programs.iter_mut().flatten() {
            item.needs[0] /= unit as usize;
        }
        let clients = problem.sizes[size].clients as usize;
        let room = [(PARTS / unit) as usize, in_units(memory_mib), clients];
        let mut filling = Self {
            problem,
            memory_mib,
            worths: [0, 1, 2].map(|need| worth_table(&programs, need, room[need])),
            programs,
            known,
            chosen: Vec::new(),
            best: None,
            worth: limit,
            most: limit,
            states: 0,
        };
        filling.add_loads(0, room, 0, 0.0);
        if filling.states > MAX_STATES {
            filling.most = filling.most.max(filling.bound_from(0, &room));
        }
        filling
    }

    /// Returns the most that loads can be worth.
    pub fn upper_bound(&self) -> f64 {
        self.worth.max(self.most)
    }

    pub fn work_done(&self) -> u64 {
        let items: usize = self.programs.iter().map(Vec::len).sum();
        let rooms: usize = self.worths.iter().map(|worths| worths[0].len()).sum();
        self.states * 8 + (items * rooms) as u64
    }

    fn bound_from(&self, next: usize, room: &Needs) -> f64 {
        let worths = self.worths.iter().zip(room);
        worths
            .map(|(worths, room)| worths[next][*room])
            .fold(f64::INFINITY, f64::min)
    }

    fn add_loads(&mut self, from: usize, room: Needs, memory_mib: u64, worth: f64) {
        self.states += 1;
        if worth > self.worth + WORTHWHILE_GAIN && !self.known.contains(&self.chosen.as_slice()) {
            self.worth = worth;
            self.best = Some(self.chosen.clone());
        }
        for next in from..self.programs.len() {
            if self.states > MAX_STATES
                || worth + self.bound_from(next, &room) <= self.worth + WORTHWHILE_GAIN
            {
                return;
            }
            let program = self.programs[next][0].load.demand;
            let friends = &self.problem.demands[program].friends;
            if !self
                .chosen
                .iter()
                .all(|other| friends.contains(&other.demand))
            {
                continue;
            }
            for nth in 0..self.programs[next].len() {
                let item = &self.programs[next][nth];
                let memory = memory_mib + item.memory_mib;
                let fits = item
                    .needs
                    .iter()
                    .zip(&room)
                    .all(|(need, room)| need <= room);
                if !fits || memory > self.memory_mib && !self.chosen.is_empty() {
                    continue;
                }
                let room = [0, 1, 2].map(|need| room[need] - item.needs[need]);
                let worth = worth + item.price;
                if worth + self.bound_from(next + 1, &room) > self.worth + WORTHWHILE_GAIN {
                    self.chosen.push(item.load);
                    self.add_loads(next + 1, room, memory, worth);
                    self.chosen.pop();
                }
            }
        }
    }
}

/// Returns the most that the programs from each on are worth together in each room, by one need.
fn worth_table(programs: &[Vec<Item>], need: usize, all: usize) -> Vec<Vec<f64>> {
    let mut worths = vec![vec![0.0; all + 1]];
    for items in programs.iter().rev() {
        let after = &worths[worths.len() - 1];
        let worth = |room: usize| {
            items
                .iter()
                .filter(|item| item.needs[need] <= room)
                .map(|item| item.price + after[room - item.needs[need]])
                .fold(after[room], f64::max)
        };
        worths.push((0..=all).map(worth).collect());
    }
    worths.reverse();
    worths
}
