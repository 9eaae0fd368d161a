//! The nearest requests that fit.

use std::cmp::Reverse;

use super::{GpuInstanceProfile, Placement, ProfileId, Request, media_engines, request};

/// The number of each profile.
type Counts = Vec<(ProfileId, u32)>;

/// The number of other layouts to offer beside the largest part of the request.
const OTHERS: usize = 2;

/// The requests nearest to one that does not fit: first as much of it as fits, then other layouts
/// with as many compute slices, those with the fewest instances exchanged first.
pub fn nearest(offered: &[GpuInstanceProfile], requests: &[Request]) -> Vec<Vec<Request>> {
    let mut answer: Vec<Vec<Request>> = largest_part(offered, requests).into_iter().collect();
    if requests.iter().any(|request| request.at.is_some()) {
        return answer;
    }
    let wanted = request::count(requests.iter().map(|request| request.profile));
    let slices = |counts: &Counts| -> u32 {
        counts
            .iter()
            .map(|(id, count)| find(offered, *id).map_or(0, |profile| profile.slices) * count)
            .sum()
    };
    let most = slices(&wanted);
    let mut fitting = Vec::new();
    grow(&pool(offered, &wanted), Fitting::nothing(), &mut fitting);
    fitting.retain(|counts| slices(counts) <= most);
    let target = fitting.iter().map(slices).max().unwrap_or(0);
    let part = answer.first().into_iter().flatten();
    let part = slices(&request::count(part.map(|request| request.profile)));
    // Where the part has them all, another layout is no nearer.
    fitting.retain(|counts| slices(counts) == target && target > part);
    // Of equally near ones the one with the fewer instances is the plainer exchange.
    fitting.sort_by_key(|counts| {
        let instances: u32 = counts.iter().map(|(_, count)| count).sum();
        (distance(counts, &wanted), instances)
    });
    let others = fitting.into_iter().map(|counts| requests_of(&counts));
    for other in others.take(OTHERS) {
        if !answer.contains(&other) {
            answer.push(other);
        }
    }
    answer
}

/// The requests with as few left out as makes them fit; of equally few, the small ones go.
fn largest_part(offered: &[GpuInstanceProfile], requests: &[Request]) -> Option<Vec<Request>> {
    let mut kinds: Vec<(Request, usize)> = Vec::new();
    for request in requests {
        let request = Request {
            entry: 0,
            ..request.clone()
        };
        match kinds.iter_mut().find(|(kind, _)| *kind == request) {
            Some((_, count)) => *count += 1,
            None => kinds.push((request, 1)),
        }
    }
    kinds.sort_by_key(|(request, _)| {
        let profile = find(offered, request.profile);
        (Reverse(profile.map_or(0, |p| p.memory_mib)), request.at)
    });
    let mut best = None;
    shrink(offered, &kinds, Fitting::nothing(), Vec::new(), &mut best);
    best.filter(|part| !part.requests.is_empty())
        .map(|part| part.requests)
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
    kinds: &[(Request, usize)],
    fitting: Fitting<'_>,
    kept: Vec<Request>,
    best: &mut Option<Part>,
) {
    let left: usize = kinds.iter().map(|(_, count)| count).sum();
    let cannot_win = |best: &Part| kept.len() + left < best.size.0;
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
        for nth in 0..*count {
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

fn requests_of(counts: &Counts) -> Vec<Request> {
    let one = |&profile| Request {
        profile,
        at: None,
        entry: 0,
    };
    counts
        .iter()
        .flat_map(|(profile, count)| std::iter::repeat_n(one(profile), *count as usize))
        .collect()
}

/// The profiles that other layouts are made of: those asked for, and of every slice count the plain
/// one; the largest first.
fn pool<'a>(offered: &'a [GpuInstanceProfile], wanted: &Counts) -> Vec<&'a GpuInstanceProfile> {
    let is_plain = |profile: &GpuInstanceProfile| {
        let twin = |other: &GpuInstanceProfile| {
            other.slices == profile.slices && other.memory_mib < profile.memory_mib
        };
        profile.name.is_plain() && !offered.iter().any(|p| p.name.is_plain() && twin(p))
    };
    let asked = |profile: &GpuInstanceProfile| wanted.iter().any(|(id, _)| *id == profile.id);
    let mut pool: Vec<_> = offered.iter().filter(|p| is_plain(p) || asked(p)).collect();
    pool.sort_by_key(|profile| Reverse((profile.slices, profile.memory_mib)));
    pool
}

/// Every way to put more of `pool` beside what fits already.
fn grow(pool: &[&GpuInstanceProfile], fitting: Fitting<'_>, all: &mut Vec<Counts>) {
    let Some((profile, rest)) = pool.split_first() else {
        all.push(fitting.counts());
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
fn distance(a: &Counts, b: &Counts) -> u32 {
    let of = |counts: &Counts, id| {
        let found = counts.iter().find(|(other, _)| *other == id);
        found.map_or(0, |(_, count)| *count)
    };
    let removed: u32 = b.iter().map(|(id, n)| n.saturating_sub(of(a, *id))).sum();
    let added: u32 = a.iter().map(|(id, n)| n.saturating_sub(of(b, *id))).sum();
    removed + added
}

fn find(offered: &[GpuInstanceProfile], id: ProfileId) -> Option<&GpuInstanceProfile> {
    offered.iter().find(|profile| profile.id == id)
}

/// Instances that fit together: how many of each profile, and every set of units they can occupy.
#[derive(Clone)]
struct Fitting<'a> {
    counts: Vec<(&'a GpuInstanceProfile, u32)>,
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
        let too_many = self.counts.iter().any(|(p, count)| *count > p.most);
        let names = self.counts.iter().map(|(p, count)| (&p.name, *count));
        if too_many || !media_engines::suffices(names) {
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

    fn counts(&self) -> Counts {
        let counts = self.counts.iter();
        counts
            .map(|(profile, count)| (profile.id, *count))
            .collect()
    }
}

/// A bit for each unit of a placement. GPUs have at most 12 units.
fn units_of(place: Placement) -> u64 {
    let below = |end: u32| 1_u64.checked_shl(end).map_or(u64::MAX, |bit| bit - 1);
    below(place.end()) & !below(place.start)
}
