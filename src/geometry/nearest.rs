//! The nearest requests that fit.

use std::cmp::Reverse;

use super::request::{Counts, can_exist, count, find};
use super::{GpuInstanceProfile, Placement, Request};

/// The number of other layouts to offer beside the largest part of the request.
const OTHERS: usize = 2;

/// The requests nearest to one that does not fit: first as much of it as fits, then other layouts
/// with as many compute slices, those with the fewest instances exchanged first.
pub fn nearest(offered: &[GpuInstanceProfile], requests: &[Request]) -> Vec<Vec<Request>> {
    let mut answer: Vec<Vec<Request>> = largest_part(offered, requests).into_iter().collect();
    if requests.iter().any(|request| request.at.is_some()) {
        return answer;
    }
    let counts = |requests: &[Request]| -> Counts<'_> {
        let requests = requests.iter();
        count(requests.filter_map(|request| find(offered, request.profile)))
    };
    let slices = |counts: &Counts<'_>| -> u32 {
        let counts = counts.iter();
        counts.map(|(profile, count)| profile.slices * count).sum()
    };
    let wanted = counts(requests);
    let most = slices(&wanted);
    let mut fitting = Vec::new();
    grow(&pool(offered, &wanted), Fitting::nothing(), &mut fitting);
    fitting.retain(|counts| slices(counts) <= most);
    let target = fitting.iter().map(slices).max().unwrap_or(0);
    let part = answer.first().map_or(0, |part| slices(&counts(part)));
    // Where the part has them all, another layout is no nearer.
    fitting.retain(|counts| slices(counts) == target && target > part);
    // Of equally near ones the one with the fewer instances is the plainer exchange.
    fitting.sort_by_key(|counts| {
        let instances: u32 = counts.iter().map(|(_, count)| count).sum();
        (distance(counts, &wanted), instances)
    });
    for other in fitting.iter().map(requests_of).take(OTHERS) {
        if !answer.contains(&other) {
            answer.push(other);
        }
    }
    answer
}

/// The requests with as few left out as makes them fit; of equally few, the small ones go.
fn largest_part(offered: &[GpuInstanceProfile], requests: &[Request]) -> Option<Vec<Request>> {
    let mut kinds = count(requests.iter().map(|request| Request {
        entry: 0,
        ..request.clone()
    }));
    kinds.sort_by_key(|(request, _)| {
        let profile = find(offered, request.profile);
        (Reverse(profile.map_or(0, |p| p.memory_mib)), request.at)
    });
    let mut best = None;
    shrink(offered, &kinds, Fitting::nothing(), Vec::new(), &mut best);
    best.map(|part| part.requests)
        .filter(|requests| !requests.is_empty())
}

/// Some of the requests, which fit.
struct Part {
    /// Their number and memory.
    size: (usize, u64),
    requests: Vec<Request>,
}

/// Goes through every number of each kind that fits, the greatest first.
fn shrink(
    offered: &[GpuInstanceProfile],
    kinds: &[(Request, u32)],
    fitting: Fitting<'_>,
    kept: Vec<Request>,
    best: &mut Option<Part>,
) {
    let left: u32 = kinds.iter().map(|(_, count)| count).sum();
    let cannot_win = |best: &Part| kept.len() + (left as usize) < best.size.0;
    if best.as_ref().is_some_and(cannot_win) {
        return;
    }
    let Some(((request, count), rest)) = kinds.split_first() else {
        let memory = |r: &Request| find(offered, r.profile).map_or(0, |p| p.memory_mib);
        let size = (kept.len(), kept.iter().map(memory).sum());
        if best.as_ref().is_none_or(|best| size > best.size) {
            let requests = kept;
            *best = Some(Part { size, requests });
        }
        return;
    };
    let mut steps = vec![(fitting, kept)];
    if let Some(profile) = find(offered, request.profile) {
        for nth in 0..*count as usize {
            let (fitting, kept) = steps[nth].clone();
            let Some(fitting) = fitting.with(profile, request.at) else {
                break;
            };
            let kept = [kept.as_slice(), std::slice::from_ref(request)].concat();
            steps.push((fitting, kept));
        }
    }
    for (fitting, kept) in steps.into_iter().rev() {
        shrink(offered, rest, fitting, kept, best);
    }
}

fn requests_of(counts: &Counts<'_>) -> Vec<Request> {
    let one = |profile: &GpuInstanceProfile| Request {
        profile: profile.id,
        at: None,
        entry: 0,
    };
    let counts = counts.iter();
    counts
        .flat_map(|(profile, count)| std::iter::repeat_n(one(profile), *count as usize))
        .collect()
}

/// The profiles that other layouts are made of: those asked for, and of every slice count the plain
/// one; the largest first.
fn pool<'a>(offered: &'a [GpuInstanceProfile], wanted: &Counts<'_>) -> Vec<&'a GpuInstanceProfile> {
    let is_plain = |profile: &GpuInstanceProfile| {
        let twin = |other: &GpuInstanceProfile| {
            other.slices == profile.slices && other.memory_mib < profile.memory_mib
        };
        profile.name.is_plain() && !offered.iter().any(|p| p.name.is_plain() && twin(p))
    };
    let asked =
        |profile: &GpuInstanceProfile| wanted.iter().any(|(wanted, _)| wanted.id == profile.id);
    let mut pool: Vec<_> = offered.iter().filter(|p| is_plain(p) || asked(p)).collect();
    pool.sort_by_key(|profile| Reverse((profile.slices, profile.memory_mib)));
    pool
}

/// Every way to put more of `pool` beside what fits already.
fn grow<'a>(pool: &[&'a GpuInstanceProfile], fitting: Fitting<'a>, all: &mut Vec<Counts<'a>>) {
    let Some((profile, rest)) = pool.split_first() else {
        all.push(fitting.counts);
        return;
    };
    let mut more = Some(fitting);
    for _ in 0..=profile.most {
        let Some(fitting) = more else { return };
        grow(rest, fitting.clone(), all);
        more = fitting.with(profile, None);
    }
}

/// The number of instances that differ.
fn distance(a: &Counts<'_>, b: &Counts<'_>) -> u32 {
    let beyond = |a: &Counts<'_>, b: &Counts<'_>| -> u32 {
        let of = |id| b.iter().find(|(profile, _)| profile.id == id);
        a.iter()
            .map(|(profile, n)| n.saturating_sub(of(profile.id).map_or(0, |(_, count)| *count)))
            .sum()
    };
    beyond(a, b) + beyond(b, a)
}

/// Instances that fit together: how many of each profile, and every set of units they can occupy.
#[derive(Clone)]
struct Fitting<'a> {
    counts: Counts<'a>,
    /// A bit for each unit.
    occupied: Vec<u64>,
}

impl<'a> Fitting<'a> {
    fn nothing() -> Self {
        Self {
            counts: Vec::new(),
            occupied: vec![0],
        }
    }

    /// One more; `None` where it does not fit.
    fn with(mut self, profile: &'a GpuInstanceProfile, at: Option<u32>) -> Option<Self> {
        match self.counts.iter_mut().find(|(p, _)| p.id == profile.id) {
            Some((_, count)) => *count += 1,
            None => self.counts.push((profile, 1)),
        }
        if !can_exist(&self.counts) {
            return None;
        }
        let places = profile.placements.iter();
        let places = places.filter(|place| at.is_none_or(|at| place.start == at));
        let masks: Vec<u64> = places.map(|&place| units_of(place)).collect();
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
    let below = |end: u32| 1_u64.checked_shl(end).map_or(u64::MAX, |bit| bit - 1);
    below(place.end()) & !below(place.start)
}
