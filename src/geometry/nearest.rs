//! What fits where a request does not.

use std::cmp::Reverse;

use super::{GpuInstanceProfile, Placement, ProfileId, Request, assignment, media, solver};

/// How many of each profile.
type Counts = Vec<(ProfileId, u32)>;

/// How many other layouts are told beside the largest part of the request.
const OTHERS: usize = 2;

/// The requests nearest to one that does not fit: first as much of it as fits, then other layouts
/// with as many compute slices, those with the fewest instances exchanged first.
pub fn nearest(offered: &[GpuInstanceProfile], requests: &[Request]) -> Vec<Vec<Request>> {
    let mut answer: Vec<Vec<Request>> = largest_part(offered, requests).into_iter().collect();
    if requests.iter().any(|request| request.at.is_some()) {
        return answer;
    }
    let wanted = assignment::count(requests.iter().map(|request| request.profile));
    let slices = |counts: &Counts| -> u32 {
        counts
            .iter()
            .map(|(id, count)| find(offered, *id).map_or(0, |profile| profile.slices) * count)
            .sum()
    };
    let most = slices(&wanted);
    let mut fitting = Vec::new();
    grow(offered, &pool(offered, &wanted), Vec::new(), &mut fitting);
    fitting.retain(|counts| slices(counts) <= most);
    let target = fitting.iter().map(slices).max().unwrap_or(0);
    let part = answer.first().into_iter().flatten();
    let part = slices(&assignment::count(part.map(|request| request.profile)));
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
    let mut best: Option<(usize, u64, Vec<usize>)> = None;
    let mut kept = vec![0; kinds.len()];
    loop {
        let count: usize = kept.iter().sum();
        let size = |(n, (kind, _)): (&usize, &(Request, usize))| {
            *n as u64 * find(offered, kind.profile).map_or(0, |p| p.memory_mib)
        };
        let size: u64 = kept.iter().zip(&kinds).map(size).sum();
        let better = best
            .as_ref()
            .is_none_or(|(most, largest, _)| (count, size) > (*most, *largest));
        if better && count > 0 && fits(offered, &expand(&kinds, &kept)) {
            best = Some((count, size, kept.clone()));
        }
        // The next combination, as one counts.
        let Some(digit) = (0..kinds.len()).find(|&digit| kept[digit] < kinds[digit].1) else {
            break;
        };
        kept[digit] += 1;
        kept[..digit].fill(0);
    }
    best.map(|(_, _, kept)| expand(&kinds, &kept))
}

fn expand(kinds: &[(Request, usize)], kept: &[usize]) -> Vec<Request> {
    let pairs = kinds.iter().zip(kept);
    pairs
        .flat_map(|((kind, _), &count)| std::iter::repeat_n(kind.clone(), count))
        .collect()
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
fn grow(
    offered: &[GpuInstanceProfile],
    pool: &[&GpuInstanceProfile],
    counts: Counts,
    fitting: &mut Vec<Counts>,
) {
    let Some((profile, rest)) = pool.split_first() else {
        fitting.push(counts);
        return;
    };
    for count in 0..=profile.most {
        let mut more = counts.clone();
        if count > 0 {
            more.push((profile.id, count));
            if !fits(offered, &requests_of(&more)) {
                break;
            }
        }
        grow(offered, rest, more, fitting);
    }
}

/// How many instances differ.
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

/// Whether all requests fit on an empty GPU: the first arrangement found will do.
pub(super) fn fits(offered: &[GpuInstanceProfile], requests: &[Request]) -> bool {
    let counts = assignment::count(requests.iter().map(|request| request.profile));
    let mut named = Vec::with_capacity(counts.len());
    for (id, count) in counts {
        match find(offered, id) {
            Some(profile) if count <= profile.most => named.push((&profile.name, count)),
            _ => return false,
        }
    }
    if !media::suffices(named.into_iter()) {
        return false;
    }
    let mut choices: Vec<(ProfileId, Vec<Placement>)> = requests
        .iter()
        .map(|request| {
            let places = find(offered, request.profile).map(|profile| &profile.placements);
            let allowed = |place: &&Placement| request.at.is_none_or(|at| place.start == at);
            let places = places.into_iter().flatten().filter(allowed);
            (request.profile, places.copied().collect())
        })
        .collect();
    choices.sort_by_key(|(id, places)| {
        let size = places.first().map_or(0, |place| place.size);
        (places.len(), Reverse(size), *id)
    });
    first(&choices, &mut Vec::new(), solver::units(offered))
}

fn first(choices: &[(ProfileId, Vec<Placement>)], chosen: &mut Vec<Placement>, free: u32) -> bool {
    let Some((_, places)) = choices.get(chosen.len()) else {
        return true;
    };
    places.iter().any(|&place| {
        if place.size > free || chosen.iter().any(|other| other.overlaps(place)) {
            return false;
        }
        chosen.push(place);
        let found = first(choices, chosen, free - place.size);
        chosen.pop();
        found
    })
}
