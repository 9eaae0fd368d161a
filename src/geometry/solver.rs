//! Finds places for the instances that a profile asks for, beside or instead of existing ones.
//!
//! The search is exact: it returns "infeasible" only if no arrangement exists, and otherwise the least
//! disruptive one. It stays small, since a GPU has at most 15 instances on 12 placement units, and it has two
//! levels: first the places for each GPU instance profile, then the assignment of equal requests to them.

use std::cmp::Reverse;

use super::assignment::{self, Assignment};
use super::request::{self, Request};
use super::{Disruption, GpuInstanceProfile, Placement, ProfileId, media_engines};

/// An existing GPU instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Existing {
    /// Its profile.
    pub profile: ProfileId,
    /// Its placement.
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

/// The error when no arrangement of the requests exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Infeasible;

/// Returns the best placement for every request.
///
/// An existing instance stays if a request of its profile gets its placement, and is destroyed otherwise.
/// `keeping(entry, standing)` is the disruption of keeping that instance for a request of that entry: its
/// daemon may have to restart. Of all arrangements the one
/// that disrupts least is chosen, then the one that leaves the largest free block, then the
/// one with the lowest starts.
///
/// Returns [`Infeasible`] if no arrangement exists, whatever may be destroyed.
pub fn arrange(
    offered: &[GpuInstanceProfile],
    standing: &[Existing],
    requests: &[Request],
    keeping: &dyn Fn(usize, usize) -> Disruption,
) -> Result<Arrangement, Infeasible> {
    let profile = |id| offered.iter().find(|profile| profile.id == id);
    let counts = request::count(requests.iter().map(|request| request.profile));
    let wanted: Option<Vec<_>> = counts
        .iter()
        .map(|&(id, count)| profile(id).map(|profile| (profile, count)))
        .collect();
    let wanted = wanted.ok_or(Infeasible)?;
    let too_many = |&(profile, count): &(&GpuInstanceProfile, u32)| count > profile.most;
    let names = wanted
        .iter()
        .map(|(profile, count)| (&profile.name, *count));
    if wanted.iter().any(too_many) || !media_engines::suffices(names) {
        return Err(Infeasible);
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
    for request in requests {
        let Some(at) = request.at else { continue };
        let profile = profile(request.profile).ok_or(Infeasible)?;
        let place = profile.placements.iter().find(|place| place.start == at);
        let place = *place.ok_or(Infeasible)?;
        if search.is_taken(place) {
            return Err(Infeasible);
        }
        search.chosen.push((profile.id, place));
    }
    let free = |request: &&Request| request.at.is_none();
    let free = requests.iter().filter(free).map(|request| request.profile);
    for (id, count) in request::count(free) {
        let profile = profile(id).ok_or(Infeasible)?;
        search.items.extend((0..count).map(|_| profile));
    }
    // Large ones have the fewest choices. Equal ones stay neighbours: their places rise.
    search.items.sort_by_key(|profile| {
        let size = profile.placements.first().map_or(0, |place| place.size);
        (Reverse(size), profile.id)
    });
    let pinned = search.chosen.clone();
    let lost = pinned
        .iter()
        .enumerate()
        .map(|(nth, &item)| search.disruption_of(item, &pinned[..nth]))
        .sum();
    search.descend(0, lost);
    search.best.map(|best| best.arrangement).ok_or(Infeasible)
}

/// The number of units that the placements of these profiles span.
pub fn units(offered: &[GpuInstanceProfile]) -> u32 {
    let places = offered.iter().flat_map(|profile| &profile.placements);
    places.map(|place| place.end()).max().unwrap_or(0)
}

/// Which profile lies where.
type Item = (ProfileId, Placement);

struct Search<'a> {
    standing: &'a [Existing],
    requests: &'a [Request],
    keeping: &'a dyn Fn(usize, usize) -> Disruption,
    units: u32,
    /// The profiles to place, without the pinned ones.
    items: Vec<&'a GpuInstanceProfile>,
    /// The pinned ones, then those of `items` placed so far.
    chosen: Vec<Item>,
    best: Option<Best>,
}

struct Best {
    score: Score,
    arrangement: Arrangement,
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
        if self
            .best
            .as_ref()
            .is_some_and(|best| lost > best.score.disruption)
        {
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
            .map(|&(_, place)| place);
        for &place in &profile.placements {
            if twin.is_some_and(|twin| place <= twin) || self.is_taken(place) {
                continue;
            }
            let item = (profile.id, place);
            let more = self.disruption_of(item, &self.chosen);
            self.chosen.push(item);
            self.descend(depth + 1, lost + more);
            self.chosen.pop();
        }
    }

    fn is_taken(&self, place: Placement) -> bool {
        self.chosen.iter().any(|(_, other)| other.overlaps(place))
    }

    /// The disruption that an item adds to those before it.
    fn disruption_of(&self, item: Item, before: &[Item]) -> Disruption {
        let destroys = |standing: &Existing, (profile, place): Item| {
            place.overlaps(standing.placement)
                && (profile, place) != (standing.profile, standing.placement)
        };
        self.standing
            .iter()
            .filter(|standing| destroys(standing, item))
            .filter(|standing| !before.iter().any(|&other| destroys(standing, other)))
            .map(|standing| standing.disruption)
            .sum()
    }

    fn judge(&mut self) {
        let kept = |&(profile, place): &Item| {
            self.standing
                .iter()
                .position(|s| (s.profile, s.placement) == (profile, place))
        };
        let stays: Vec<Option<usize>> = self.chosen.iter().map(kept).collect();
        let gone: Disruption = self
            .standing
            .iter()
            .enumerate()
            .filter(|(index, _)| !stays.contains(&Some(*index)))
            .map(|(_, standing)| standing.disruption)
            .sum();
        if self
            .best
            .as_ref()
            .is_some_and(|best| gone > best.score.disruption)
        {
            return;
        }
        let places: Vec<assignment::FoundPlace> = self
            .chosen
            .iter()
            .zip(stays)
            .map(|(&(profile, placement), standing)| assignment::FoundPlace {
                profile,
                placement,
                standing,
            })
            .collect();
        let Assignment {
            placements,
            disruption,
        } = assignment::assign(self.requests, &places, self.keeping);
        let disruption = gone + disruption;
        let mut sorted = self.chosen.clone();
        sorted.sort_unstable_by_key(|&(_, place)| place);
        let (profiles, places): (Vec<_>, Vec<_>) = sorted.into_iter().unzip();
        let score = Score {
            disruption,
            free: Reverse(largest_gap(&places, self.units)),
            places,
            profiles,
        };
        if self.best.as_ref().is_none_or(|best| score < best.score) {
            self.best = Some(Best {
                score,
                arrangement: Arrangement {
                    placements,
                    disruption,
                },
            });
        }
    }
}

/// The longest stretch of units between places that are sorted.
pub(super) fn largest_gap(places: &[Placement], units: u32) -> u32 {
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
