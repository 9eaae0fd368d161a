//! The planner's answers found the long way round, from the catalog alone: every set of instances
//! that can lie on a GPU at once.

use std::collections::BTreeMap;

use simnode::catalog::{Model, Profile};

/// The number of instances of each profile, in the model's order.
pub(crate) type Counts = Vec<u32>;

/// An instance: the number of its profile in the model's order, its start and its size.
pub(crate) type Body = (usize, u32, u32);

/// Every set of instances that can lie on a GPU of a model, by how many of each profile it has.
///
/// Instances must not share a unit, and their engines must be there: a GPU has as many of each kind
/// as its best equipped profile. That is what allows one `+me`, and beside `+me.all` only `-me`.
pub(crate) fn layouts(model: &Model) -> BTreeMap<Counts, Vec<Vec<Body>>> {
    let mut found: BTreeMap<Counts, Vec<Vec<Body>>> = BTreeMap::new();
    let mut bodies: Vec<Body> = Vec::new();
    for (number, profile) in model.profiles.iter().enumerate() {
        let places = &profile.placements;
        bodies.extend(
            places
                .starts
                .iter()
                .map(|&start| (number, start, places.size)),
        );
    }
    let mut chosen = Vec::new();
    collect(model, &bodies, &mut chosen, &mut found);
    found
}

fn collect(
    model: &Model,
    bodies: &[Body],
    chosen: &mut Vec<Body>,
    found: &mut BTreeMap<Counts, Vec<Vec<Body>>>,
) {
    let mut counts = vec![0; model.profiles.len()];
    for (number, ..) in chosen.iter() {
        counts[*number] += 1;
    }
    let mut sorted = chosen.clone();
    sorted.sort_unstable_by_key(|&(number, start, _)| (start, number));
    found.entry(counts).or_default().push(sorted);
    for (index, &body) in bodies.iter().enumerate() {
        if chosen.iter().all(|other| !overlap(*other, body)) {
            chosen.push(body);
            if engines_suffice(model, chosen) {
                collect(model, &bodies[index + 1..], chosen, found);
            }
            chosen.pop();
        }
    }
}

fn overlap((_, start, size): Body, (_, other, length): Body) -> bool {
    start < other + length && other < start + size
}

fn engines_suffice(model: &Model, chosen: &[Body]) -> bool {
    let kinds = |profile: &Profile| {
        let engines = profile.engines;
        [
            engines.decoders,
            engines.encoders,
            engines.jpeg,
            engines.ofa,
        ]
    };
    (0..4).all(|kind| {
        let most = model
            .profiles
            .iter()
            .map(|profile| kinds(profile)[kind])
            .max();
        let used: u32 = chosen
            .iter()
            .map(|(number, ..)| kinds(&model.profiles[*number])[kind])
            .sum();
        used <= most.unwrap_or(0)
    })
}

/// Every number of each profile whose instances have no more units than the GPU, and each of these
/// with one instance too many.
pub(crate) fn requests(model: &Model) -> Vec<Counts> {
    let mut all = vec![vec![0; model.profiles.len()]];
    let mut fresh = all.clone();
    while !fresh.is_empty() {
        let mut next = Vec::new();
        for counts in &fresh {
            if units(model, counts) > model.placement_units {
                continue;
            }
            // One more of the last kind or of a later one: each multiset comes once.
            let last = counts.iter().rposition(|&count| count > 0).unwrap_or(0);
            for kind in last..counts.len() {
                let mut more = counts.clone();
                more[kind] += 1;
                next.push(more);
            }
        }
        all.extend(next.iter().cloned());
        fresh = next;
    }
    all
}

fn units(model: &Model, counts: &Counts) -> u32 {
    let sizes = model.profiles.iter().map(|profile| profile.placements.size);
    counts
        .iter()
        .zip(sizes)
        .map(|(count, size)| count * size)
        .sum()
}

/// The longest stretch without an instance.
pub(crate) fn free_block(model: &Model, layout: &[Body]) -> u32 {
    let is_free = |unit: u32| {
        layout
            .iter()
            .all(|&(_, start, size)| unit < start || unit >= start + size)
    };
    let mut longest = 0;
    let mut length = 0;
    for unit in 0..model.placement_units {
        length = if is_free(unit) { length + 1 } else { 0 };
        longest = longest.max(length);
    }
    longest
}
