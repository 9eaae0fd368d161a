//! The search against brute force, and what must hold of every answer.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::advice::{Advice, AdvisedProgram};
use super::request::{AdviceRequest, NoAdvice};
use super::solver::{FilledDevice, PARTS, PackingProblem, SearchResult, find_smallest};
use super::{gpu_counts, saturating_u32};
use crate::plan::virtual_node::{EmptyNode, check_on_gpus, plan_on};
use crate::profile::{Amount, Measurement, Profile, Sharing, WantedProgram, WantedPrograms};
use crate::render::json::Report;
use crate::settings::Percentage;

/// Nodes that are small enough for brute force.
const NODES: [&[&str]; 3] = [&["a30:3"], &["a100-80gb:2"], &["a30:1", "a100-80gb:1"]];

/// Sizes of devices on each of their models, the whole GPU among them.
const SIZES: [&[(&str, &str)]; 3] = [
    &[
        ("a30", "1g.6gb"),
        ("a30", "2g.12gb"),
        ("a30", "4g.24gb"),
        ("a30", "whole"),
    ],
    &[
        ("a100-80gb", "2g.20gb"),
        ("a100-80gb", "3g.40gb"),
        ("a100-80gb", "4g.40gb"),
        ("a100-80gb", "whole"),
    ],
    &[
        ("a30", "2g.12gb"),
        ("a30", "whole"),
        ("a100-80gb", "3g.40gb"),
        ("a100-80gb", "2g.20gb"),
    ],
];

/// Demands of programs, and their figures.
#[derive(Clone, Debug)]
struct Case {
    node: usize,
    wanted: WantedPrograms,
}

pub fn measurement(
    program: usize,
    size: (&str, &str),
    threads: f64,
    copies: u32,
    throughput: u32,
) -> Measurement {
    Measurement {
        program: format!("p{program}"),
        gpu: size.0.to_owned(),
        device: size.1.parse().unwrap(),
        threads: Percentage::new(threads).unwrap(),
        copies,
        throughput: f64::from(throughput),
        counts_runs: false,
        memory_mib: None,
        latency_ms: None,
        is_interpolated: false,
    }
}

/// Figures of one program: for some sizes, threads and copies a throughput and the GiB of each copy.
fn figures() -> impl Strategy<Value = Vec<(usize, usize, u32, u32, u64)>> {
    vec(
        (0..4_usize, 0..3_usize, 1..4_u32, 1..12_u32, 1..9_u64),
        1..5,
    )
}

fn cases(programs: std::ops::Range<usize>) -> impl Strategy<Value = Case> {
    let program = (figures(), option::of(1..5_u32), 3..25_u32, 0..3_usize);
    (0..NODES.len(), vec(program, programs)).prop_map(|(node, programs)| {
        let mut wanted = WantedPrograms::default();
        for (nth, (figures, copies, rate, sharing)) in programs.into_iter().enumerate() {
            for (size, threads, copies, throughput, gib) in figures {
                let threads = [100.0, 50.0, 25.0][threads];
                let size = SIZES[node][size];
                wanted.measured.push(Measurement {
                    memory_mib: Some(1024 * gib * u64::from(copies)),
                    ..measurement(nth, size, threads, copies, throughput)
                });
            }
            wanted.programs.push(WantedProgram {
                name: format!("p{nth}"),
                amount: copies.map_or(Amount::Rate(f64::from(rate)), Amount::Copies),
                memory_mib: 0,
                latency_ms: None,
                sharing: [
                    Sharing::Own,
                    Sharing::Any,
                    Sharing::With(vec!["p0".to_owned()]),
                ][sharing]
                    .clone(),
            });
        }
        Case { node, wanted }
    })
}

impl Case {
    fn empty(&self) -> EmptyNode {
        let gpus: Vec<_> = NODES[self.node]
            .iter()
            .map(|gpu| gpu.parse().unwrap())
            .collect();
        EmptyNode::of_models(&gpus)
    }

    fn problem(&self) -> PackingProblem {
        let node = self.empty();
        let request = AdviceRequest::new(&node, &gpu_counts(&node), &self.wanted, false, 1);
        request.unwrap().problem
    }

    fn advice(&self) -> Option<Advice> {
        let node = self.empty();
        let request =
            AdviceRequest::new(&node, &gpu_counts(&node), &self.wanted, false, 1).unwrap();
        match request.smallest_solution() {
            Ok(solution) => Some(Advice::new(&request, &solution, &self.wanted, &node)),
            Err(NoAdvice::TooFew { .. }) => None,
            Err(other) => panic!("{other}"),
        }
    }

    fn is_measured(&self, one: &AdvisedProgram) -> bool {
        self.wanted.measured.iter().any(|row| {
            let figures = (&row.program, row.copies, row.threads, row.throughput);
            (&one.program, one.copies, one.threads, one.rate) == figures
        })
    }
}

/// Supplies of demands in millionths, no more than all.
type Supplies = Vec<u32>;

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "up to a million"
)]
fn millionths(supply: f64) -> u32 {
    (supply.min(1.0) * 1e6).round() as u32
}

/// Every sum of supplies that a device can have.
fn on_device(problem: &PackingProblem, size: usize) -> BTreeSet<Supplies> {
    let mut all = BTreeSet::new();
    let mut open: Vec<(usize, Vec<(usize, usize)>)> = vec![(0, Vec::new())];
    while let Some((from, loads)) = open.pop() {
        let mut supplies = vec![0; problem.demands.len()];
        for (demand, offer) in &loads {
            supplies[*demand] = millionths(problem.demands[*demand].offers[*offer].supply);
        }
        all.insert(supplies);
        for demand in from..problem.demands.len() {
            for (nth, offer) in problem.demands[demand].offers.iter().enumerate() {
                let with = |(other, nth): &(usize, usize)| &problem.demands[*other].offers[*nth];
                let parts: u32 = loads.iter().map(|load| with(load).parts).sum();
                let memory: u64 = loads.iter().map(|load| with(load).memory_mib).sum();
                let are_friends = |(other, _): &(usize, usize)| {
                    problem.demands[*other].friends.contains(&demand)
                        && problem.demands[demand].friends.contains(other)
                };
                let copies: u32 = loads.iter().map(|load| with(load).copies).sum();
                let fits = loads.is_empty()
                    || parts + offer.parts <= PARTS
                        && copies + offer.copies <= problem.sizes[size].clients
                        && memory + offer.memory_mib <= problem.sizes[size].memory_mib;
                if offer.size == size && fits && loads.iter().all(are_friends) {
                    let loads = [loads.as_slice(), &[(demand, nth)]].concat();
                    open.push((demand + 1, loads));
                }
            }
        }
    }
    all
}

fn sum(one: &Supplies, other: &Supplies) -> Supplies {
    let both = one.iter().zip(other);
    both.map(|(one, other)| (one + other).min(1_000_000))
        .collect()
}

/// Every sum of supplies that a GPU of a group can have, with its slices and its free block.
fn on_gpu(problem: &PackingProblem, group: usize) -> BTreeSet<(Supplies, u32, u32)> {
    let mut all = BTreeSet::new();
    for layout in problem
        .layouts
        .iter()
        .filter(|layout| layout.group == group)
    {
        let mut sums = BTreeSet::from([vec![0; problem.demands.len()]]);
        let mut slices = 0;
        for (size, count) in layout.counts.iter().enumerate() {
            let device = on_device(problem, size);
            for _ in 0..*count {
                slices += problem.sizes[size].slices;
                sums = sums
                    .iter()
                    .flat_map(|one| device.iter().map(move |other| sum(one, other)))
                    .collect();
            }
        }
        all.extend(sums.into_iter().map(|sum| (sum, slices, layout.free)));
    }
    all
}

/// The fewest GPUs, then the fewest slices, then the largest free block, by trying everything.
fn brute(problem: &PackingProblem) -> Option<(u32, u32, u32)> {
    let gpus: Vec<_> = (0..problem.gpus.len())
        .map(|group| on_gpu(problem, group))
        .collect();
    let none = (
        vec![0; problem.gpus.len()],
        vec![0; problem.demands.len()],
        0,
        0,
    );
    let mut states = BTreeSet::from([none]);
    for number in 1..=problem.gpus.iter().sum() {
        let mut next = BTreeSet::new();
        for (used, supplies, slices, free) in &states {
            for (group, all) in gpus
                .iter()
                .enumerate()
                .filter(|(group, _)| used[*group] < problem.gpus[*group])
            {
                let mut used: Vec<u32> = used.clone();
                used[group] += 1;
                for (more, of_gpu, block) in all {
                    next.insert((
                        used.clone(),
                        sum(supplies, more),
                        slices + of_gpu,
                        *free.max(block),
                    ));
                }
            }
        }
        // Supplies are rounded to millionths, a few times.
        let best = next
            .iter()
            .filter(|(_, supplies, _, _)| supplies.iter().all(|supply| *supply >= 999_990))
            .map(|(_, _, slices, free)| (*slices, std::cmp::Reverse(*free)))
            .min();
        if let Some((slices, free)) = best {
            return Some((number, slices, free.0));
        }
        states = next;
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_smaller_than_the_answer(case in cases(1..4)) {
        let problem = case.problem();
        let found = match find_smallest(&problem) {
            SearchResult::Solution(solution) => {
                prop_assert!(solution.is_proven);
                let gpus = saturating_u32(solution.gpus.len());
                prop_assert_eq!((solution.least_gpus, solution.least_slices), (gpus, solution.slices));
                Some((gpus, solution.slices, solution.free))
            }
            SearchResult::None => None,
            SearchResult::Unknown => return Err(TestCaseError::fail("a limit was reached")),
        };
        prop_assert_eq!(found, brute(&problem));
    }

    /// A search that ends early overstates no bound.
    #[test]
    fn bounds_hold_without_any_effort(case in cases(1..4)) {
        let mut problem = case.problem();
        problem.effort = 0;
        let SearchResult::Solution(solution) = find_smallest(&problem) else { return Ok(()) };
        let (gpus, slices, _) = brute(&problem).unwrap();
        prop_assert!(solution.least_gpus <= gpus);
        prop_assert!(saturating_u32(solution.gpus.len()) > gpus || solution.least_slices <= slices);
    }

    #[test]
    fn every_demand_is_met_and_no_device_is_overfull(case in cases(1..5)) {
        let problem = case.problem();
        let SearchResult::Solution(solution) = find_smallest(&problem) else { return Ok(()) };
        let mut supplies = vec![0.0; problem.demands.len()];
        for FilledDevice { size, loads } in solution.gpus.iter().flat_map(|(_, devices)| devices) {
            let offers = loads.iter().map(|load| &problem.demands[load.demand].offers[load.offer]);
            prop_assert!(offers.clone().all(|offer| offer.size == *size));
            prop_assert!(offers.clone().map(|offer| offer.parts).sum::<u32>() <= PARTS);
            prop_assert!(offers.clone().map(|offer| offer.copies).sum::<u32>() <= problem.sizes[*size].clients);
            let memory = offers.map(|offer| offer.memory_mib).sum::<u64>();
            prop_assert!(loads.len() == 1 || memory <= problem.sizes[*size].memory_mib);
            for load in loads {
                supplies[load.demand] += problem.demands[load.demand].offers[load.offer].supply;
                let friends = loads.iter().filter(|other| other.demand != load.demand).map(|other| problem.demands[other.demand].friends.contains(&load.demand));
                prop_assert_eq!(friends.filter(|is_friend| *is_friend).count(), loads.len() - 1);
            }
        }
        prop_assert!(supplies.iter().all(|supply| *supply > 1.0 - 1e-6), "{:?}", supplies);
    }

    /// The profile fits, and has a client of each copy whose figures are in the answer.
    #[test]
    fn the_profile_is_planned_and_has_room_for_every_copy(case in cases(1..4)) {
        let Some(advice) = case.advice() else { return Ok(()) };
        let node = case.empty();
        let profile = Profile::parse("p.toml".as_ref(), advice.profile.clone());
        let profile = profile.map_err(|error| TestCaseError::fail(error.to_string()))?;
        let plan = plan_on(&node.node, &profile);
        let plan = plan.map_err(|error| TestCaseError::fail(format!("{}{error}", advice.profile)))?;
        let gpus: Vec<_> = NODES[case.node].iter().map(|gpu| gpu.parse().unwrap()).collect();
        prop_assert!(check_on_gpus(&profile, &gpus).is_ok());
        let planned = plan.gpus.iter().map(|gpu| gpu.devices.len()).sum::<usize>();
        let devices = advice.gpus.iter().map(|gpus| gpus.indices.len() * gpus.devices.len());
        prop_assert_eq!(planned, devices.sum::<usize>());
        for program in &case.wanted.programs {
            let (mut rate, mut copies) = (0.0, 0);
            for gpus in &advice.gpus {
                let all = gpus.devices.iter().flat_map(|device| &device.programs);
                for one in all.filter(|one| one.program == program.name) {
                    prop_assert!(case.is_measured(one));
                    rate += one.rate * f64::from(saturating_u32(gpus.indices.len()));
                    copies += one.copies * saturating_u32(gpus.indices.len());
                }
            }
            let is_met = match program.amount {
                Amount::Rate(wanted) => rate > wanted - 1e-6,
                Amount::Copies(wanted) => copies >= wanted,
            };
            prop_assert!(is_met);
        }
    }

    #[test]
    fn more_never_needs_fewer_gpus(case in cases(1..4), program in 0..3_usize, more in 1..4_u32) {
        let mut larger = case.clone();
        let program = program % larger.wanted.programs.len();
        let amount = &mut larger.wanted.programs[program].amount;
        *amount = match *amount {
            Amount::Rate(rate) => Amount::Rate(rate + f64::from(more)),
            Amount::Copies(copies) => Amount::Copies(copies + more),
        };
        if let Some(more) = larger.advice() {
            let less = case.advice().map(|less| less.used_gpu_count());
            prop_assert!(less.is_some_and(|less| less <= more.used_gpu_count()));
        }
    }

    #[test]
    fn names_and_order_change_nothing(case in cases(2..5), turn in 1..4_usize) {
        let mut other = case.clone();
        let turn = turn % other.wanted.programs.len();
        other.wanted.programs.rotate_left(turn);
        other.wanted.measured.reverse();
        // Of figures for the same, the latest counts.
        let key = |row: &Measurement| (row.program.clone(), row.gpu.clone(), row.device.clone(), row.threads.to_string(), row.copies);
        let keys: Vec<_> = case.wanted.measured.iter().map(key).collect();
        prop_assume!((1..keys.len()).all(|nth| !keys[..nth].contains(&keys[nth])));
        let renamed = |name: &mut String| *name = name.replace('p', "other-");
        other.wanted.programs.iter_mut().for_each(|program| {
            renamed(&mut program.name);
            if let Sharing::With(names) = &mut program.sharing {
                names.iter_mut().for_each(renamed);
            }
        });
        other.wanted.measured.iter_mut().for_each(|row| renamed(&mut row.program));
        let size = |case: &Case| case.advice().map(|advice| (advice.used_gpu_count(), advice.slices, advice.largest_free_block, advice.undivided_gpus));
        prop_assert_eq!(size(&case), size(&other));
    }
}

/// The answer for programs that want a rate each, and may share devices.
fn advice_of(gpus: &[&str], rates: &[u32], figures: &[Measurement]) -> Advice {
    let gpus: Vec<_> = gpus.iter().map(|gpu| gpu.parse().unwrap()).collect();
    let node = EmptyNode::of_models(&gpus);
    let programs = rates.iter().enumerate().map(|(nth, rate)| WantedProgram {
        name: format!("p{nth}"),
        amount: Amount::Rate(f64::from(*rate)),
        memory_mib: 0,
        latency_ms: None,
        sharing: Sharing::Any,
    });
    let wanted = WantedPrograms {
        programs: programs.collect(),
        measured: figures.to_vec(),
    };
    let request = AdviceRequest::new(&node, &gpu_counts(&node), &wanted, false, 1).unwrap();
    Advice::new(
        &request,
        &request.smallest_solution().unwrap(),
        &wanted,
        &node,
    )
}

/// The search went down without end where a demand was met more than once.
#[test]
fn a_demand_that_is_met_twice_ends_the_search() {
    let figures = [
        measurement(0, ("a100-80gb", "4g.40gb"), 100.0, 2, 2),
        measurement(1, ("a100-80gb", "1g.20gb"), 100.0, 4, 31),
        measurement(2, ("a100-80gb", "3g.40gb"), 100.0, 2, 59),
    ];
    let advice = advice_of(&["a100-80gb:9"], &[10, 18, 100], &figures);
    assert_eq!((advice.used_gpu_count(), advice.slices), (5, 27));
    assert!(advice.is_proven);
}

/// The cost of a demand was unknown where some of its loads were ruled out.
#[test]
fn many_small_loads_leave_nothing_unproven() {
    let figures = [
        measurement(0, ("a100-80gb", "1g.20gb"), 15.0, 2, 2),
        measurement(1, ("a100-80gb", "1g.20gb"), 35.0, 1, 4),
        measurement(1, ("a100-80gb", "1g.20gb"), 25.0, 1, 3),
        measurement(1, ("a100-80gb", "1g.20gb"), 100.0, 4, 11),
        measurement(1, ("a100-80gb", "1g.20gb"), 25.0, 3, 8),
        measurement(1, ("a100-80gb", "1g.20gb"), 50.0, 1, 6),
        measurement(1, ("h100-80gb-sxm", "1g.10gb"), 100.0, 4, 10),
    ];
    let advice = advice_of(&["h100-80gb-sxm:6", "a100-80gb:6"], &[2, 163], &figures);
    assert_eq!(
        (
            advice.used_gpu_count(),
            advice.slices,
            advice.largest_free_block
        ),
        (3, 17, 2)
    );
    assert!(advice.is_proven);
}

#[test]
fn an_answer_says_how_far_from_proven_it_is() {
    let figures = [measurement(0, ("a100-80gb", "2g.20gb"), 100.0, 1, 10)];
    let mut advice = advice_of(&["a100-80gb:4"], &[60], &figures);
    let mut first_line = |is_proven, least_gpus, least_slices| {
        (advice.is_proven, advice.least_gpus, advice.least_slices) =
            (is_proven, least_gpus, least_slices);
        advice.text(80).lines().next().unwrap().to_owned()
    };
    let lines = [
        first_line(true, 2, 12),
        first_line(false, 2, 12),
        first_line(false, 2, 11),
        first_line(false, 1, 7),
    ];
    assert_eq!(
        lines,
        [
            "2 GPUs, 12 slices, by these figures: no layout has fewer",
            "2 GPUs, 12 slices, possibly not the best layout: no layout has fewer GPUs",
            "2 GPUs, 12 slices, possibly not the best layout: no layout has fewer GPUs, and on as many GPUs, at least 11 slices",
            "2 GPUs, 12 slices, possibly not the best layout: every layout has at least 1 GPU, and on as many GPUs, at least 7 slices",
        ]
    );
    let mut remarks = |effort| {
        (advice.is_proven, advice.effort) = (false, effort);
        advice.text(200)
    };
    assert!(remarks(1).contains("find better: --effort 10."));
    assert!(remarks(10).contains("find better: --effort 100."));
    assert!(remarks(400).contains("find better: --effort 1000."));
    assert!(!remarks(1000).contains("--effort"));
}

/// A figure with a higher rate is no better beside others if it needs more memory.
#[test]
fn figures_with_less_memory_are_kept_for_programs_that_share() {
    let whole = |program, threads, throughput, gib: u64| Measurement {
        memory_mib: Some(gib << 10),
        ..measurement(program, ("a100-80gb", "whole"), threads, 1, throughput)
    };
    let figures = [
        whole(0, 40.0, 10, 60),
        whole(0, 50.0, 9, 10),
        whole(1, 50.0, 5, 30),
    ];
    let advice = advice_of(&["a100-80gb:2"], &[9, 5], &figures);
    assert_eq!(advice.used_gpu_count(), 1);
}
