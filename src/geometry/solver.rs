//! Finds places for the instances that a profile asks for, beside or instead of existing ones.
//!
//! The search is exact: it returns "infeasible" only if no arrangement exists, and otherwise the least
//! disruptive one. It stays small, since a GPU has at most 15 instances on 12 placement units, and it has two
//! levels: first the places for each GPU instance profile, then the assignment of equal requests to them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::iter::Sum;
use std::ops::Add;

use super::{GpuInstanceProfile, Placement, ProfileId};

/// A request for one GPU instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub profile: ProfileId,
    /// The start of its placement, if pinned.
    pub at: Option<u32>,
    /// Requests of one entry are interchangeable.
    pub entry: usize,
}

/// The number of each profile.
pub(super) type Counts<'a> = Vec<(&'a GpuInstanceProfile, u32)>;

/// Counts equal items, in the order of first occurrence.
pub fn count_each<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<(T, u32)> {
    let mut counts: Vec<(T, u32)> = Vec::new();
    for item in items {
        match counts.iter_mut().find(|(other, _)| *other == item) {
            Some((_, count)) => *count += 1,
            None => counts.push((item, 1)),
        }
    }
    counts
}

/// Returns the profile with this id.
pub(super) fn find_profile(
    offered: &[GpuInstanceProfile],
    id: ProfileId,
) -> Option<&GpuInstanceProfile> {
    offered.iter().find(|profile| profile.id == id)
}

/// True if so many of each profile can exist at once, wherever they lie.
///
/// A GPU has one optical flow engine and one full set of the other media engines. At most one instance is `+me` or
/// `+me.all`; `+me.all` takes every engine, so that all others must be `-me` (nvml.h at
/// `NVML_GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME`, measured on GA100, GH100, GB202).
pub(super) fn can_exist(wanted: &Counts<'_>) -> bool {
    let (mut extra, mut plain, mut all) = (0, 0, 0);
    for (profile, count) in wanted {
        let name = &profile.name;
        if name.has_attribute("+me.all") {
            all += count;
        } else if name.has_attribute("+me") {
            extra += count;
        } else if !name.has_attribute("-me") {
            plain += count;
        }
    }
    let engines_suffice = extra + all <= 1 && (all == 0 || plain == 0);
    engines_suffice && wanted.iter().all(|(profile, count)| *count <= profile.most)
}

/// The disruption that a change causes. Less sorts lower: plans are compared by clients disrupted,
/// then GPU instances destroyed, then daemons restarted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Disruption {
    /// Programs that lose their device, or may.
    pub clients: u32,
    /// GPU instances destroyed.
    pub gpu_instances: u32,
    /// Running daemons stopped or restarted.
    pub daemons: u32,
    /// Compute instances destroyed, those of destroyed GPU instances included.
    pub compute_instances: u32,
    /// Settings changed under clients. This disrupts nobody, and only breaks ties, so that a node without drift stays
    /// unchanged.
    pub changes: u32,
}

impl Disruption {
    /// No disruption.
    pub const NONE: Self = Self {
        clients: 0,
        gpu_instances: 0,
        daemons: 0,
        compute_instances: 0,
        changes: 0,
    };
}

impl Add for Disruption {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            clients: self.clients + other.clients,
            gpu_instances: self.gpu_instances + other.gpu_instances,
            daemons: self.daemons + other.daemons,
            compute_instances: self.compute_instances + other.compute_instances,
            changes: self.changes + other.changes,
        }
    }
}

impl Sum for Disruption {
    fn sum<I: Iterator<Item = Self>>(disruptions: I) -> Self {
        disruptions.fold(Self::NONE, Self::add)
    }
}

/// An existing GPU instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Existing {
    pub profile: ProfileId,
    pub placement: Placement,
    /// The disruption of destroying it.
    pub disruption: Disruption,
}

/// A placement for every request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrangement {
    /// The placements in the order of the requests; those of one entry rise.
    pub placements: Vec<Placement>,
    /// The disruption that it causes.
    pub disruption: Disruption,
}

/// Returns the best placement for every request.
///
/// An existing instance stays if a request of its profile gets its placement, and is destroyed otherwise.
/// `keeping(entry, existing)` is the disruption of keeping that instance for a request of that entry: its
/// daemon may have to restart. Of all arrangements the one
/// that disrupts least is chosen, then the one that leaves the largest free block, then the
/// one with the lowest starts.
///
/// Returns `None` if no arrangement exists, whatever may be destroyed.
pub fn arrange(
    offered: &[GpuInstanceProfile],
    existing: &[Existing],
    requests: &[Request],
    keeping: &dyn Fn(usize, usize) -> Disruption,
) -> Option<Arrangement> {
    let wanted = count_each(requests.iter().map(|request| request.profile))
        .into_iter()
        .map(|(id, count)| Some((find_profile(offered, id)?, count)));
    if !can_exist(&wanted.collect::<Option<Counts<'_>>>()?) {
        return None;
    }
    let mut search = Search {
        existing,
        requests,
        keeping,
        units: count_units(offered),
        items: Vec::new(),
        chosen: Vec::new(),
        best: None,
    };
    let mut lost = Disruption::NONE;
    for request in requests {
        let profile = find_profile(offered, request.profile)?;
        let Some(at) = request.at else {
            search.items.push(profile);
            continue;
        };
        let placement = *profile.placements.iter().find(|place| place.start == at)?;
        if search.is_taken(placement) {
            return None;
        }
        lost = lost + search.add_place(profile.id, placement);
    }
    // Large ones have the fewest choices. Equal ones become neighbors: their places rise.
    search
        .items
        .sort_by_key(|profile| (Reverse(profile.placement_size()), profile.id));
    search.place_remaining(0, lost);
    search.best.map(|(score, placements)| Arrangement {
        placements,
        disruption: score.disruption,
    })
}

/// The number of units that the placements of these profiles span.
pub fn count_units(offered: &[GpuInstanceProfile]) -> u32 {
    offered
        .iter()
        .flat_map(|profile| &profile.placements)
        .map(|place| place.end())
        .max()
        .unwrap_or(0)
}

struct Search<'a> {
    existing: &'a [Existing],
    requests: &'a [Request],
    keeping: &'a dyn Fn(usize, usize) -> Disruption,
    units: u32,
    /// The profiles to place, without the pinned ones.
    items: Vec<&'a GpuInstanceProfile>,
    /// The pinned ones, then those of `items` placed so far.
    chosen: Vec<FoundPlace>,
    best: Option<(Score, Vec<Placement>)>,
}

/// The order of arrangements; less is better. The profiles come last so that
/// the order of requests decides nothing.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    disruption: Disruption,
    free: Reverse<u32>,
    places: Vec<Placement>,
    profiles: Vec<ProfileId>,
}

impl Search<'_> {
    /// Places the items from `depth` on. `lost` is the disruption that the chosen ones do by lying on
    /// existing instances: it only grows.
    fn place_remaining(&mut self, depth: usize, lost: Disruption) {
        if self.is_beaten(lost) {
            return;
        }
        let Some(&profile) = self.items.get(depth) else {
            self.compare_with_best();
            return;
        };
        let twin = depth
            .checked_sub(1)
            .filter(|&before| self.items[before].id == profile.id)
            .and_then(|_| self.chosen.last())
            .map(|twin| twin.placement);
        for &place in &profile.placements {
            if twin.is_some_and(|twin| place <= twin) || self.is_taken(place) {
                continue;
            }
            let more = self.add_place(profile.id, place);
            self.place_remaining(depth + 1, lost + more);
            self.chosen.pop();
        }
    }

    /// True if a better arrangement is known than any that disrupts so much.
    fn is_beaten(&self, disruption: Disruption) -> bool {
        let best = self.best.as_ref();
        best.is_some_and(|(score, _)| disruption > score.disruption)
    }

    fn is_taken(&self, place: Placement) -> bool {
        self.chosen
            .iter()
            .any(|other| other.placement.overlaps(place))
    }

    /// Adds a place to the chosen ones. Returns the disruption that it adds to theirs.
    fn add_place(&mut self, profile: ProfileId, placement: Placement) -> Disruption {
        let mut existing = self.existing.iter();
        let place = FoundPlace {
            profile,
            placement,
            existing: existing.position(|s| (s.profile, s.placement) == (profile, placement)),
        };
        let mut disruption = Disruption::NONE;
        for (nth, existing) in self.existing.iter().enumerate() {
            if place.destroys(nth, existing)
                && !self
                    .chosen
                    .iter()
                    .any(|other| other.destroys(nth, existing))
            {
                disruption = disruption + existing.disruption;
            }
        }
        self.chosen.push(place);
        disruption
    }

    /// Compares the chosen places with the best ones.
    fn compare_with_best(&mut self) {
        let mut gone = Disruption::NONE;
        for (nth, existing) in self.existing.iter().enumerate() {
            if !self.chosen.iter().any(|place| place.existing == Some(nth)) {
                gone = gone + existing.disruption;
            }
        }
        if self.is_beaten(gone) {
            return;
        }
        let (placements, kept) = self.assign_places();
        let mut sorted = self.chosen.clone();
        sorted.sort_unstable_by_key(|place| place.placement);
        let (places, profiles): (Vec<_>, Vec<_>) = sorted
            .iter()
            .map(|place| (place.placement, place.profile))
            .unzip();
        let score = Score {
            disruption: gone + kept,
            free: Reverse(largest_gap(&places, self.units)),
            places,
            profiles,
        };
        if self.best.as_ref().is_none_or(|(best, _)| score < *best) {
            self.best = Some((score, placements));
        }
    }

    /// Returns a chosen place for every request so that keeping the existing instances disrupts least, and that
    /// disruption. There are as many places of each profile as requests, and the pinned requests' own are among them.
    fn assign_places(&self) -> (Vec<Placement>, Disruption) {
        let (requests, keeping) = (self.requests, self.keeping);
        let mut placements = vec![Placement::new(0, 0); requests.len()];
        let mut disruption = Disruption::NONE;
        let mut free = self.chosen.clone();
        for (index, request) in requests.iter().enumerate() {
            let Some(at) = request.at else { continue };
            let its = free
                .iter()
                .position(|place| place.profile == request.profile && place.placement.start == at);
            if let Some(position) = its {
                let place = free.swap_remove(position);
                placements[index] = place.placement;
                disruption = disruption + place.disruption_for(request.entry, keeping);
            }
        }
        free.sort_unstable_by_key(|place| (place.profile, place.placement));
        for places in free.chunk_by(|a, b| a.profile == b.profile) {
            let mut waiting: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            for (index, request) in requests.iter().enumerate() {
                if request.at.is_none() && request.profile == places[0].profile {
                    waiting.entry(request.entry).or_default().push(index);
                }
            }
            let entries: Vec<usize> = waiting.keys().copied().collect();
            let counts: Vec<usize> = waiting.values().map(Vec::len).collect();
            let matching = Matching {
                places,
                entries: &entries,
                keeping,
            };
            let (least, choices) = matching.best_assignment(counts);
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
}

/// The longest stretch of units between places that are sorted.
fn largest_gap(places: &[Placement], units: u32) -> u32 {
    let mut next = 0;
    let mut largest = 0;
    for place in places {
        largest = largest.max(place.start.saturating_sub(next));
        next = place.end();
    }
    largest.max(units.saturating_sub(next))
}

#[cfg(test)]
mod tests;

/// A placement found for a profile.
#[derive(Clone, Copy, Debug)]
struct FoundPlace {
    profile: ProfileId,
    placement: Placement,
    /// The existing instance that stays there.
    existing: Option<usize>,
}

impl FoundPlace {
    /// True if the nth existing instance lies there and does not stay.
    fn destroys(&self, nth: usize, existing: &Existing) -> bool {
        self.placement.overlaps(existing.placement) && self.existing != Some(nth)
    }

    /// The disruption of giving it to a request of this entry.
    fn disruption_for(
        &self,
        entry: usize,
        keeping: &dyn Fn(usize, usize) -> Disruption,
    ) -> Disruption {
        match self.existing {
            Some(nth) => keeping(entry, nth),
            None => Disruption::NONE,
        }
    }
}

struct Matching<'a> {
    places: &'a [FoundPlace],
    entries: &'a [usize],
    keeping: &'a dyn Fn(usize, usize) -> Disruption,
}

impl Matching<'_> {
    /// The entry for each place, and the total disruption. `counts` says how many requests of each
    /// entry there are; with equal disruption the earlier entry gets the lower place.
    fn best_assignment(&self, counts: Vec<usize>) -> (Disruption, Vec<usize>) {
        if self.entries.len() == 1 || self.places.iter().all(|place| place.existing.is_none()) {
            let order: Vec<usize> = self
                .entries
                .iter()
                .zip(&counts)
                .flat_map(|(&entry, &count)| std::iter::repeat_n(entry, count))
                .collect();
            let disruption = order
                .iter()
                .zip(self.places)
                .map(|(&entry, place)| place.disruption_for(entry, self.keeping))
                .sum();
            return (disruption, order);
        }
        let mut known = BTreeMap::new();
        let (disruption, mut choices) = self.best_from(0, counts, &mut known);
        choices.reverse();
        (disruption, choices)
    }

    /// The best for the places from `depth` on with what is left of each entry; the last place first.
    fn best_from(
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
            let (disruption, mut choices) = self.best_from(depth + 1, then, known);
            let disruption = disruption + place.disruption_for(entry, self.keeping);
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
