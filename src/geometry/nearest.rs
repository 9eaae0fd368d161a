//! The nearest requests that fit, from every set of instances that fits on one GPU.

use std::cmp::Reverse;

use super::solver::{Counts, can_exist, count_each, find_profile};
use super::{GpuInstanceProfile, Placement, Request};

/// The number of other layouts to offer beside the largest part of the request.
const MAX_OTHER_LAYOUTS: usize = 2;

/// The requests nearest to one that does not fit: first as much of it as fits, then other layouts
/// with as many compute slices, those with the fewest instances exchanged first.
pub fn nearest_requests(offered: &[GpuInstanceProfile], requests: &[Request]) -> Vec<Vec<Request>> {
    let part = largest_part(offered, requests);
    let slices_of_part = total_slices(&part.counts);
    let mut answer = vec![part.requests];
    answer.retain(|part| !part.is_empty());
    if requests.iter().any(|request| request.at.is_some()) {
        return answer;
    }
    let wanted = count_each(
        requests
            .iter()
            .filter_map(|request| find_profile(offered, request.profile)),
    );
    let most = total_slices(&wanted);
    let mut others = enumerate_fittings(&candidate_kinds(offered, &wanted));
    others.retain(|other| total_slices(&other.counts) <= most);
    let most_of_others = others.iter().map(|other| total_slices(&other.counts)).max();
    others.retain(|other| {
        let slices = total_slices(&other.counts);
        // Where the part has them all, another layout is no nearer.
        slices > slices_of_part && Some(slices) == most_of_others
    });
    // Of equally near ones the one with the fewer instances is the plainer exchange.
    others.sort_by_key(|other| {
        (
            differing_instances(&other.counts, &wanted),
            other.requests.len(),
        )
    });
    for other in others.into_iter().take(MAX_OTHER_LAYOUTS) {
        if !answer.contains(&other.requests) {
            answer.push(other.requests);
        }
    }
    answer
}

fn total_slices(counts: &Counts<'_>) -> u32 {
    counts
        .iter()
        .map(|(profile, count)| profile.slices * count)
        .sum()
}

/// The requests with as few left out as makes them fit; of equally few, the small ones go.
fn largest_part<'a>(offered: &'a [GpuInstanceProfile], requests: &[Request]) -> Fitting<'a> {
    let mut kinds: Vec<InstanceKind<'a>> =
        count_each(requests.iter().map(|request| (request.profile, request.at)))
            .into_iter()
            .filter_map(|((profile, at), most)| {
                let profile = find_profile(offered, profile)?;
                Some(InstanceKind { profile, at, most })
            })
            .collect();
    kinds.sort_by_key(|kind| (Reverse(kind.profile.memory_mib), kind.at));
    let largest = enumerate_fittings(&kinds).into_iter().max_by_key(|part| {
        let memory = part
            .counts
            .iter()
            .map(|(profile, count)| profile.memory_mib * u64::from(*count));
        (part.requests.len(), memory.sum::<u64>())
    });
    largest.unwrap_or_else(Fitting::empty)
}

/// The profiles that other layouts are made of: those asked for, and of every slice count the plain
/// one; the largest first.
fn candidate_kinds<'a>(
    offered: &'a [GpuInstanceProfile],
    wanted: &Counts<'_>,
) -> Vec<InstanceKind<'a>> {
    let mut pool = Vec::new();
    for profile in offered {
        let is_wanted = wanted.iter().any(|(other, _)| other.id == profile.id);
        if is_wanted || is_plainest(offered, profile) {
            pool.push(InstanceKind {
                profile,
                at: None,
                most: profile.most,
            });
        }
    }
    pool.sort_by_key(|kind| Reverse((kind.profile.slices, kind.profile.memory_mib)));
    pool
}

/// True if it has no attributes, and of such profiles with its slices the least memory.
fn is_plainest(offered: &[GpuInstanceProfile], profile: &GpuInstanceProfile) -> bool {
    profile.name.is_plain()
        && !offered.iter().any(|other| {
            other.name.is_plain()
                && other.slices == profile.slices
                && other.memory_mib < profile.memory_mib
        })
}

/// The number of instances that differ.
fn differing_instances(a: &Counts<'_>, b: &Counts<'_>) -> u32 {
    excess_instances(a, b) + excess_instances(b, a)
}

/// The number of instances in `a` that `b` does not have.
pub(super) fn excess_instances(a: &Counts<'_>, b: &Counts<'_>) -> u32 {
    let mut number = 0;
    for (profile, count) in a {
        let other = b.iter().find(|(other, _)| other.id == profile.id);
        number += count.saturating_sub(other.map_or(0, |(_, count)| *count));
    }
    number
}

/// Instances that are interchangeable.
pub(super) struct InstanceKind<'a> {
    pub(super) profile: &'a GpuInstanceProfile,
    /// The start of their placement, if pinned.
    pub(super) at: Option<u32>,
    /// The most that are wanted.
    pub(super) most: u32,
}

/// Instances that fit together, and every set of units they can occupy.
#[derive(Clone)]
pub(super) struct Fitting<'a> {
    pub(super) requests: Vec<Request>,
    pub(super) counts: Counts<'a>,
    /// A bit for each unit.
    occupied: Vec<u64>,
}

/// Every way to put instances of these kinds together; the last one has the most of the first kind.
pub(super) fn enumerate_fittings<'a>(kinds: &[InstanceKind<'a>]) -> Vec<Fitting<'a>> {
    let mut all = vec![Fitting::empty()];
    for kind in kinds {
        let mut with_kind = Vec::new();
        for fitting in all {
            let more =
                std::iter::successors(Some(fitting), |fitting| fitting.clone().with_instance(kind));
            with_kind.extend(more.take(kind.most as usize + 1));
        }
        all = with_kind;
    }
    all
}

impl<'a> Fitting<'a> {
    fn empty() -> Self {
        Self {
            requests: Vec::new(),
            counts: Vec::new(),
            occupied: vec![0],
        }
    }

    /// One more; `None` where it does not fit.
    fn with_instance(mut self, kind: &InstanceKind<'a>) -> Option<Self> {
        let profile = kind.profile;
        self.requests.push(Request {
            profile: profile.id,
            at: kind.at,
            entry: 0,
        });
        match self.counts.iter_mut().find(|(p, _)| p.id == profile.id) {
            Some((_, count)) => *count += 1,
            None => self.counts.push((profile, 1)),
        }
        if !can_exist(&self.counts) {
            return None;
        }
        let masks: Vec<u64> = profile
            .placements
            .iter()
            .filter(|place| kind.at.is_none_or(|at| place.start == at))
            .map(|&place| units_of(place))
            .collect();
        let before = std::mem::take(&mut self.occupied);
        for occupied in before {
            let free = masks.iter().filter(|&&mask| mask & occupied == 0);
            self.occupied.extend(free.map(|mask| mask | occupied));
        }
        self.occupied.sort_unstable();
        self.occupied.dedup();
        (!self.occupied.is_empty()).then_some(self)
    }
}

/// A bit for each unit of a placement. GPUs have at most 12 units.
fn units_of(place: Placement) -> u64 {
    units_below(place.end()) & !units_below(place.start)
}

fn units_below(end: u32) -> u64 {
    1_u64.checked_shl(end).map_or(u64::MAX, |bit| bit - 1)
}
