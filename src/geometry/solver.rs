//! Finds places for the instances a profile asks for, beside or instead of what stands.
//!
//! The search is exact: it answers "infeasible" only when no arrangement exists, and what it answers
//! is the best by DESIGN 5.3's order. It is also small: a GPU has at most 15 instances on 12
//! placement units. Two levels keep it so: which places are taken by which GPU instance profile, and
//! then which of the equal requests gets which of these places.

use std::cmp::Reverse;

use super::assignment::{self, Assignment};
use super::{GpuInstanceProfile, Harm, Placement, ProfileId, media};

/// One GPU instance that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Of which profile.
    pub profile: ProfileId,
    /// Where, if the user pinned it.
    pub at: Option<u32>,
    /// Requests of one entry are interchangeable.
    pub entry: usize,
}

/// One GPU instance that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Of which profile.
    pub profile: ProfileId,
    /// Where it lies.
    pub placement: Placement,
    /// What destroying it would do.
    pub harm: Harm,
}

/// A place for every request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrangement {
    /// In the order of the requests; of one entry's, rising.
    pub placements: Vec<Placement>,
    /// What it does to what stands.
    pub harm: Harm,
}

/// No arrangement of the requests exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Infeasible;

/// The best place for every request.
///
/// A standing instance stays where it is if a request of its profile gets its very place, and is
/// destroyed otherwise. `keeping(entry, standing)` is what it costs to keep that standing instance
/// for a request of that entry: its daemon may have to be restarted. Of all arrangements the one
/// that does the least harm is chosen, then the one that leaves the largest free block, then the
/// one with the lowest starts (DESIGN 5.3).
///
/// # Errors
/// [`Infeasible`] when no arrangement exists, whatever may be destroyed.
pub fn arrange(
    offered: &[GpuInstanceProfile],
    standing: &[Standing],
    requests: &[Request],
    keeping: &dyn Fn(usize, usize) -> Harm,
) -> Result<Arrangement, Infeasible> {
    let profile = |id| offered.iter().find(|profile| profile.id == id);
    let counts = assignment::count(requests.iter().map(|request| request.profile));
    let wanted: Option<Vec<_>> = counts
        .iter()
        .map(|&(id, count)| profile(id).map(|profile| (profile, count)))
        .collect();
    let wanted = wanted.ok_or(Infeasible)?;
    let too_many = |&(profile, count): &(&GpuInstanceProfile, u32)| count > profile.most;
    let names = wanted
        .iter()
        .map(|(profile, count)| (&profile.name, *count));
    if wanted.iter().any(too_many) || !media::suffices(names) {
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
    for (id, count) in assignment::count(free) {
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
        .map(|(nth, &item)| search.harm_of(item, &pinned[..nth]))
        .sum();
    search.descend(0, lost);
    search.best.map(|best| best.arrangement).ok_or(Infeasible)
}

/// How many placement units these profiles' placements span.
pub fn units(offered: &[GpuInstanceProfile]) -> u32 {
    let places = offered.iter().flat_map(|profile| &profile.placements);
    places.map(|place| place.end()).max().unwrap_or(0)
}

/// Which profile lies where.
type Item = (ProfileId, Placement);

struct Search<'a> {
    standing: &'a [Standing],
    requests: &'a [Request],
    keeping: &'a dyn Fn(usize, usize) -> Harm,
    units: u32,
    /// What is to be placed, the pinned ones left out.
    items: Vec<&'a GpuInstanceProfile>,
    /// The pinned ones, then those of `items` placed so far.
    chosen: Vec<Item>,
    best: Option<Best>,
}

struct Best {
    score: Score,
    arrangement: Arrangement,
}

/// The rest of DESIGN 5.3's order behind the harm, less is better. The profiles come last so that
/// the order of requests decides nothing.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    harm: Harm,
    free: Reverse<u32>,
    places: Vec<Placement>,
    profiles: Vec<ProfileId>,
}

impl Search<'_> {
    /// Places the items from `depth` on. `lost` is the harm that the chosen ones do by lying on what
    /// stands: it only grows.
    fn descend(&mut self, depth: usize, lost: Harm) {
        if self
            .best
            .as_ref()
            .is_some_and(|best| lost > best.score.harm)
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
            let more = self.harm_of(item, &self.chosen);
            self.chosen.push(item);
            self.descend(depth + 1, lost + more);
            self.chosen.pop();
        }
    }

    fn is_taken(&self, place: Placement) -> bool {
        self.chosen.iter().any(|(_, other)| other.overlaps(place))
    }

    /// What an item destroys that those before it did not.
    fn harm_of(&self, item: Item, before: &[Item]) -> Harm {
        let destroys = |standing: &Standing, (profile, place): Item| {
            place.overlaps(standing.placement)
                && (profile, place) != (standing.profile, standing.placement)
        };
        self.standing
            .iter()
            .filter(|standing| destroys(standing, item))
            .filter(|standing| !before.iter().any(|&other| destroys(standing, other)))
            .map(|standing| standing.harm)
            .sum()
    }

    fn judge(&mut self) {
        let kept = |&(profile, place): &Item| {
            self.standing
                .iter()
                .position(|s| (s.profile, s.placement) == (profile, place))
        };
        let stays: Vec<Option<usize>> = self.chosen.iter().map(kept).collect();
        let gone: Harm = self
            .standing
            .iter()
            .enumerate()
            .filter(|(index, _)| !stays.contains(&Some(*index)))
            .map(|(_, standing)| standing.harm)
            .sum();
        if self
            .best
            .as_ref()
            .is_some_and(|best| gone > best.score.harm)
        {
            return;
        }
        let places: Vec<assignment::Place> = self
            .chosen
            .iter()
            .zip(stays)
            .map(|(&(profile, placement), standing)| assignment::Place {
                profile,
                placement,
                standing,
            })
            .collect();
        let Assignment { placements, harm } =
            assignment::assign(self.requests, &places, self.keeping);
        let harm = gone + harm;
        let mut sorted = self.chosen.clone();
        sorted.sort_unstable_by_key(|&(_, place)| place);
        let (profiles, places): (Vec<_>, Vec<_>) = sorted.into_iter().unzip();
        let score = Score {
            harm,
            free: Reverse(largest_gap(&places, self.units)),
            places,
            profiles,
        };
        if self.best.as_ref().is_none_or(|best| score < best.score) {
            self.best = Some(Best {
                score,
                arrangement: Arrangement { placements, harm },
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
mod tests {
    use super::*;
    use crate::geometry::ProfileEnum;

    /// The A100's table (MIG user guide): name, id, how many, size, starts.
    fn a100() -> Vec<GpuInstanceProfile> {
        [
            ("1g.10gb", 19, 7, 1, vec![0, 1, 2, 3, 4, 5, 6]),
            ("1g.10gb+me", 20, 1, 1, vec![0, 1, 2, 3, 4, 5, 6]),
            ("1g.20gb", 15, 4, 2, vec![0, 2, 4, 6]),
            ("2g.20gb", 14, 3, 2, vec![0, 2, 4]),
            ("3g.40gb", 9, 2, 4, vec![0, 4]),
            ("4g.40gb", 5, 1, 4, vec![0]),
            ("7g.80gb", 0, 1, 8, vec![0]),
        ]
        .into_iter()
        .map(|(name, id, most, size, starts)| GpuInstanceProfile {
            id: ProfileId(id),
            query: ProfileEnum(0),
            name: name.parse().unwrap(),
            slices: 1,
            multiprocessors: 14,
            memory_mib: 0,
            most,
            free: None,
            placements: starts
                .into_iter()
                .map(|start| Placement::new(start, size))
                .collect(),
        })
        .collect()
    }

    fn requests(names: &str) -> Vec<Request> {
        let offered = a100();
        names
            .split_whitespace()
            .map(|word| {
                let (name, at) = word
                    .split_once('@')
                    .map_or((word, None), |(name, at)| (name, Some(at.parse().unwrap())));
                let name: crate::geometry::ProfileName = name.parse().unwrap();
                let id = name
                    .choose(offered.iter().map(|p| (&p.name, p.id)))
                    .unwrap();
                Request {
                    profile: id,
                    at,
                    entry: 0,
                }
            })
            .collect()
    }

    fn keeping_is_free(_: usize, _: usize) -> Harm {
        Harm::NONE
    }

    fn on(standing: &[Standing], names: &str) -> Option<(Vec<u32>, Harm)> {
        let found = arrange(&a100(), standing, &requests(names), &keeping_is_free).ok()?;
        let starts = found.placements.iter().map(|place| place.start).collect();
        Some((starts, found.harm))
    }

    fn starts(names: &str) -> Option<Vec<u32>> {
        on(&[], names).map(|(starts, _)| starts)
    }

    fn standing(id: u32, start: u32, size: u32, clients: u32) -> Standing {
        Standing {
            profile: ProfileId(id),
            placement: Placement::new(start, size),
            harm: Harm {
                clients,
                gpu_instances: 1,
                ..Harm::NONE
            },
        }
    }

    #[test]
    fn three_g_yields_the_half_that_two_g_needs() {
        // A 3g at 0 would leave one compute slice too few behind it.
        assert_eq!(starts("3g 2g 1g 1g"), Some(vec![4, 2, 0, 1]));
        assert_eq!(starts("1g 1g 2g 3g"), Some(vec![0, 1, 2, 4]));
    }

    #[test]
    fn what_cannot_fit_is_infeasible() {
        for names in [
            "3g 3g 1g",
            "4g 4g",
            "7g 1g",
            "1g+me 1g+me",
            "2g 2g 2g 2g",
            "3g 2g 2g 1g",
            "4g@4",
        ] {
            assert_eq!(starts(names), None, "{names}");
        }
    }

    #[test]
    fn a_pinned_placement_is_kept_to() {
        assert_eq!(starts("1g@6 1g"), Some(vec![6, 0]));
        assert_eq!(starts("2g@1"), None);
    }

    #[test]
    fn the_largest_free_block_is_left() {
        assert_eq!(starts("1g"), Some(vec![0]));
        // Beside 4-5, a 1g at 0 leaves 3 units in a row, at 3 it leaves 0-2, at 6 it leaves 0-3.
        assert_eq!(starts("2g@4 1g"), Some(vec![4, 6]));
    }

    #[test]
    fn what_stands_is_kept_where_it_can_be() {
        let halves = [standing(9, 0, 4, 0), standing(9, 4, 4, 0)];
        let harm = |gpu_instances, clients| Harm {
            clients,
            gpu_instances,
            ..Harm::NONE
        };
        assert_eq!(on(&halves[1..], "3g 3g"), Some((vec![0, 4], harm(0, 0))));
        assert_eq!(on(&halves[1..], "1g 3g"), Some((vec![0, 4], harm(0, 0))));
        assert_eq!(
            on(&halves, "3g 2g 1g 1g"),
            Some((vec![4, 2, 0, 1], harm(1, 0)))
        );
        // Whoever computes at 0 is in the way whatever is done.
        let busy = [standing(9, 0, 4, 2), halves[1]];
        assert_eq!(
            on(&busy, "3g 2g 1g 1g"),
            Some((vec![4, 2, 0, 1], harm(1, 2)))
        );
        // One of two equal ones has to go: the idle one.
        assert_eq!(on(&busy, "3g"), Some((vec![0], harm(1, 0))));
        assert_eq!(on(&halves, ""), Some((vec![], harm(2, 0))));
    }

    #[test]
    fn a_request_gets_the_standing_instance_that_suits_it() {
        let halves = [standing(9, 0, 4, 0), standing(9, 4, 4, 0)];
        let mut wanted = requests("3g 3g");
        wanted[1].entry = 1;
        // The first entry's daemon runs at 4, the second's at 0.
        let keeping = |entry: usize, standing: usize| Harm {
            daemons: u32::from(entry == standing),
            ..Harm::NONE
        };
        let found = arrange(&a100(), &halves, &wanted, &keeping).unwrap();
        assert_eq!(
            found.placements,
            [Placement::new(4, 4), Placement::new(0, 4)]
        );
        assert_eq!(found.harm, Harm::NONE);
        let pinned = [
            Request {
                at: Some(0),
                ..wanted[0].clone()
            },
            wanted[1].clone(),
        ];
        let found = arrange(&a100(), &halves, &pinned, &keeping).unwrap();
        assert_eq!(found.harm.daemons, 2);
    }

    #[test]
    fn the_order_of_requests_never_decides_feasibility() {
        let names = ["1g", "1g+me", "1g.20gb", "2g", "3g", "4g", "7g"];
        for a in names {
            for b in names {
                for c in names {
                    let forward = starts(&format!("{a} {b} {c}")).is_some();
                    for order in [[a, c, b], [b, a, c], [b, c, a], [c, a, b], [c, b, a]] {
                        assert_eq!(starts(&order.join(" ")).is_some(), forward, "{order:?}");
                    }
                }
            }
        }
    }
}
