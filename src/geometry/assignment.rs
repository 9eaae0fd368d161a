//! The assignment of equal requests to the places found for their profile.

use std::collections::BTreeMap;

use super::request::Request;
use super::{Disruption, Placement, ProfileId};

/// A placement found for a profile.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundPlace {
    pub(super) profile: ProfileId,
    pub(super) placement: Placement,
    /// The existing instance that stays there.
    pub(super) standing: Option<usize>,
}

/// Returns a placement for every request so that keeping the existing instances disrupts least, and that disruption.
/// There are as many places of each profile as requests, and the pinned requests' own are among them.
pub(super) fn assign(
    requests: &[Request],
    places: &[FoundPlace],
    keeping: &dyn Fn(usize, usize) -> Disruption,
) -> (Vec<Placement>, Disruption) {
    let mut placements = vec![Placement::new(0, 0); requests.len()];
    let mut disruption = Disruption::NONE;
    let mut free: Vec<FoundPlace> = places.to_vec();
    let cost = |entry, place: &FoundPlace| {
        place
            .standing
            .map_or(Disruption::NONE, |s| keeping(entry, s))
    };
    for (index, request) in requests.iter().enumerate() {
        let Some(at) = request.at else { continue };
        let its =
            |place: &FoundPlace| place.profile == request.profile && place.placement.start == at;
        if let Some(position) = free.iter().position(its) {
            let place = free.swap_remove(position);
            placements[index] = place.placement;
            disruption = disruption + cost(request.entry, &place);
        }
    }
    free.sort_unstable_by_key(|place| (place.profile, place.placement));
    for places in free.chunk_by(|a, b| a.profile == b.profile) {
        let of_profile = |(_, request): &(usize, &Request)| {
            request.at.is_none() && request.profile == places[0].profile
        };
        let mut waiting: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, request) in requests.iter().enumerate().filter(of_profile) {
            waiting.entry(request.entry).or_default().push(index);
        }
        let entries: Vec<usize> = waiting.keys().copied().collect();
        let counts: Vec<usize> = waiting.values().map(Vec::len).collect();
        let matching = Matching {
            places,
            entries: &entries,
            cost: &cost,
        };
        let (least, choices) = matching.best(counts);
        disruption = disruption + least;
        for (place, entry) in places.iter().zip(choices) {
            // There are as many requests as places.
            if let Some(requests) = waiting.get_mut(&entry) {
                placements[requests.remove(0)] = place.placement;
            }
        }
    }
    (placements, disruption)
}

struct Matching<'a, F> {
    places: &'a [FoundPlace],
    entries: &'a [usize],
    cost: &'a F,
}

impl<F: Fn(usize, &FoundPlace) -> Disruption> Matching<'_, F> {
    /// The entry for each place, and the total disruption. `counts` says how many requests of each
    /// entry there are; with equal disruption the earlier entry gets the lower place.
    fn best(&self, counts: Vec<usize>) -> (Disruption, Vec<usize>) {
        if self.entries.len() == 1 || self.places.iter().all(|place| place.standing.is_none()) {
            let order = self.entries.iter().zip(&counts);
            let order: Vec<usize> = order
                .flat_map(|(&entry, &count)| std::iter::repeat_n(entry, count))
                .collect();
            let pairs = order.iter().zip(self.places);
            let disruption = pairs.map(|(&entry, place)| (self.cost)(entry, place)).sum();
            return (disruption, order);
        }
        let mut known = BTreeMap::new();
        let (disruption, mut choices) = self.rest(0, counts, &mut known);
        choices.reverse();
        (disruption, choices)
    }

    /// The best for the places from `depth` on with what is left of each entry; the last place first.
    fn rest(
        &self,
        depth: usize,
        left: Vec<usize>,
        known: &mut BTreeMap<Vec<usize>, (Disruption, Vec<usize>)>,
    ) -> (Disruption, Vec<usize>) {
        let Some(place) = self.places.get(depth) else {
            return (Disruption::NONE, Vec::new());
        };
        if let Some(known) = known.get(&left) {
            return known.clone();
        }
        let mut best: Option<(Disruption, Vec<usize>)> = None;
        for (nth, &entry) in self.entries.iter().enumerate() {
            if left[nth] == 0 {
                continue;
            }
            let mut then = left.clone();
            then[nth] -= 1;
            let (disruption, mut choices) = self.rest(depth + 1, then, known);
            let disruption = disruption + (self.cost)(entry, place);
            if best.as_ref().is_none_or(|(least, _)| disruption < *least) {
                choices.push(entry);
                best = Some((disruption, choices));
            }
        }
        let best = best.unwrap_or_default();
        known.insert(left, best.clone());
        best
    }
}
