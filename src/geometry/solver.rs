//! Finds places for the instances that a profile asks for, beside or instead of existing ones.
//!
//! The search is exact: it returns "infeasible" only if no arrangement exists, and otherwise the least
//! disruptive one. It stays small, since a GPU has at most 15 instances on 12 placement units, and it has two
//! levels: first the places for each GPU instance profile, then the assignment of equal requests to them.

use std::cmp::Reverse;

use super::assignment::{FoundPlace, assign};
use super::request::{Counts, Request, can_exist, count, find};
use super::{Disruption, GpuInstanceProfile, Placement, ProfileId};

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
/// `keeping(entry, standing)` is the disruption of keeping that instance for a request of that entry: its
/// daemon may have to restart. Of all arrangements the one
/// that disrupts least is chosen, then the one that leaves the largest free block, then the
/// one with the lowest starts.
///
/// Returns `None` if no arrangement exists, whatever may be destroyed.
pub fn arrange(
    offered: &[GpuInstanceProfile],
    standing: &[Existing],
    requests: &[Request],
    keeping: &dyn Fn(usize, usize) -> Disruption,
) -> Option<Arrangement> {
    let wanted = count(requests.iter().map(|request| request.profile)).into_iter();
    let wanted = wanted.map(|(id, count)| Some((find(offered, id)?, count)));
    if !can_exist(&wanted.collect::<Option<Counts<'_>>>()?) {
        return None;
    }
    let mut search = Search {
        standing,
        requests,
        keeping,
        units: units(offered),
        items: Vec::new(),
        chosen: Vec::new(),
        best: None,
    };
    let mut lost = Disruption::NONE;
    for request in requests {
        let profile = find(offered, request.profile)?;
        let Some(at) = request.at else {
            search.items.push(profile);
            continue;
        };
        let placement = *profile.placements.iter().find(|place| place.start == at)?;
        if search.is_taken(placement) {
            return None;
        }
        lost = lost + search.choose(profile.id, placement);
    }
    // Large ones have the fewest choices. Equal ones become neighbours: their places rise.
    search.items.sort_by_key(|profile| {
        let size = profile.placements.first().map_or(0, |place| place.size);
        (Reverse(size), profile.id)
    });
    search.descend(0, lost);
    search.best.map(|(score, placements)| Arrangement {
        placements,
        disruption: score.disruption,
    })
}

/// The number of units that the placements of these profiles span.
pub fn units(offered: &[GpuInstanceProfile]) -> u32 {
    let places = offered.iter().flat_map(|profile| &profile.placements);
    places.map(|place| place.end()).max().unwrap_or(0)
}

struct Search<'a> {
    standing: &'a [Existing],
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
    /// Places the items from `depth` on. `lost` is the disruption that the chosen ones do by lying on what
    /// stands: it only grows.
    fn descend(&mut self, depth: usize, lost: Disruption) {
        if self.is_beaten(lost) {
            return;
        }
        let Some(&profile) = self.items.get(depth) else {
            self.judge();
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
            let more = self.choose(profile.id, place);
            self.descend(depth + 1, lost + more);
            self.chosen.pop();
        }
    }

    /// True if a better arrangement is known than any that disrupts so much.
    fn is_beaten(&self, disruption: Disruption) -> bool {
        let best = self.best.as_ref();
        best.is_some_and(|(score, _)| disruption > score.disruption)
    }

    fn is_taken(&self, place: Placement) -> bool {
        let mut chosen = self.chosen.iter();
        chosen.any(|other| other.placement.overlaps(place))
    }

    /// Adds a place to the chosen ones. Returns the disruption that it adds to theirs.
    fn choose(&mut self, profile: ProfileId, placement: Placement) -> Disruption {
        let mut standing = self.standing.iter();
        let place = FoundPlace {
            profile,
            placement,
            standing: standing.position(|s| (s.profile, s.placement) == (profile, placement)),
        };
        let destroys = |place: &FoundPlace, nth: usize, standing: &Existing| {
            place.placement.overlaps(standing.placement) && place.standing != Some(nth)
        };
        let standing = self.standing.iter().enumerate();
        let disruption = standing
            .filter(|(nth, standing)| destroys(&place, *nth, standing))
            .filter(|(nth, standing)| {
                !self
                    .chosen
                    .iter()
                    .any(|other| destroys(other, *nth, standing))
            })
            .map(|(_, standing)| standing.disruption)
            .sum();
        self.chosen.push(place);
        disruption
    }

    fn judge(&mut self) {
        let stays = |nth: usize| self.chosen.iter().any(|place| place.standing == Some(nth));
        let standing = self.standing.iter().enumerate();
        let gone: Disruption = standing
            .filter(|(nth, _)| !stays(*nth))
            .map(|(_, standing)| standing.disruption)
            .sum();
        if self.is_beaten(gone) {
            return;
        }
        let (placements, kept) = assign(self.requests, &self.chosen, self.keeping);
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
