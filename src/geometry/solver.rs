//! Finds places for the instances a profile asks for.
//!
//! The search is exact: it answers "infeasible" only when no arrangement exists. It is also small:
//! a GPU has at most 15 instances and 12 placement units.

use super::{GpuInstanceProfile, Placement, ProfileId};

/// One GPU instance that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Of which profile.
    pub profile: ProfileId,
    /// Where, if the user pinned it.
    pub at: Option<u32>,
}

/// One GPU instance that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Of which profile.
    pub profile: ProfileId,
    /// Where it lies.
    pub placement: Placement,
}

/// No arrangement of the requests exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Infeasible;

/// A place for every request, in the order of the requests.
///
/// Every standing instance is matched to a request and kept where it is: nothing is moved. Of all
/// arrangements the one that leaves the largest free block is chosen, then the one with the lowest
/// starts (DESIGN 5.3).
///
/// # Errors
/// [`Infeasible`] when no arrangement exists that keeps what stands.
pub fn place(
    offered: &[GpuInstanceProfile],
    standing: &[Standing],
    requests: &[Request],
    units: u32,
) -> Result<Vec<Placement>, Infeasible> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    // Pinned and large requests have the fewest choices; equal ones stay neighbours so that the
    // search can skip their permutations.
    order.sort_by_key(|&index| {
        let request = &requests[index];
        let choices = options(offered, request);
        let size = choices.first().map_or(0, |placement| placement.size);
        (
            request.at.is_none(),
            std::cmp::Reverse(size),
            request.profile,
        )
    });
    let mut search = Search {
        offered,
        standing,
        requests,
        order: &order,
        units,
        chosen: Vec::new(),
        best: None,
    };
    search.descend();
    let Some((_, placements)) = search.best else {
        return Err(Infeasible);
    };
    let mut answer = vec![Placement::new(0, 0); requests.len()];
    for (index, placement) in order.iter().zip(placements) {
        answer[*index] = placement;
    }
    Ok(answer)
}

fn options(offered: &[GpuInstanceProfile], request: &Request) -> Vec<Placement> {
    offered
        .iter()
        .filter(|profile| profile.id == request.profile)
        .flat_map(|profile| profile.placements.iter().copied())
        .filter(|placement| request.at.is_none_or(|at| placement.start == at))
        .collect()
}

/// What is better sorts higher: the largest free block, then the lowest starts.
type Score = (u32, std::cmp::Reverse<Vec<Placement>>);

struct Search<'a> {
    offered: &'a [GpuInstanceProfile],
    standing: &'a [Standing],
    requests: &'a [Request],
    order: &'a [usize],
    units: u32,
    chosen: Vec<Placement>,
    best: Option<(Score, Vec<Placement>)>,
}

impl Search<'_> {
    fn descend(&mut self) {
        let depth = self.chosen.len();
        let Some(&index) = self.order.get(depth) else {
            self.judge();
            return;
        };
        let request = &self.requests[index];
        let twin = depth
            .checked_sub(1)
            .filter(|&before| self.requests[self.order[before]] == *request)
            .map(|before| self.chosen[before]);
        for placement in options(self.offered, request) {
            // Equal requests are interchangeable: take their placements in rising order only.
            if twin.is_some_and(|twin| placement <= twin) || !self.fits(request, placement) {
                continue;
            }
            self.chosen.push(placement);
            self.descend();
            self.chosen.pop();
        }
    }

    fn fits(&self, request: &Request, placement: Placement) -> bool {
        let free = self.chosen.iter().all(|other| !other.overlaps(placement));
        // A standing instance is either exactly the one asked for here, or elsewhere.
        let kept = self.standing.iter().all(|standing| {
            !standing.placement.overlaps(placement)
                || (standing.placement == placement && standing.profile == request.profile)
        });
        free && kept && self.within_count(request)
    }

    /// A profile may be offered fewer times than it has placements: `+me` exists once.
    fn within_count(&self, request: &Request) -> bool {
        let most = self
            .offered
            .iter()
            .find(|profile| profile.id == request.profile)
            .map_or(0, |profile| profile.most as usize);
        let used = self.order[..self.chosen.len()]
            .iter()
            .filter(|&&index| self.requests[index].profile == request.profile)
            .count();
        used < most
    }

    fn judge(&mut self) {
        let all_kept = self
            .standing
            .iter()
            .all(|standing| self.chosen.contains(&standing.placement));
        if !all_kept {
            return;
        }
        let mut occupied = self.chosen.clone();
        occupied.sort_unstable();
        let score = (
            free_block(&occupied, self.units),
            std::cmp::Reverse(occupied),
        );
        if self.best.as_ref().is_none_or(|(best, _)| score > *best) {
            self.best = Some((score, self.chosen.clone()));
        }
    }
}

fn free_block(occupied: &[Placement], units: u32) -> u32 {
    let mut next = 0;
    let mut largest = 0;
    for placement in occupied {
        largest = largest.max(placement.start.saturating_sub(next));
        next = placement.end();
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
                Request { profile: id, at }
            })
            .collect()
    }

    fn starts(standing: &[Standing], names: &str) -> Option<Vec<u32>> {
        place(&a100(), standing, &requests(names), 8)
            .ok()
            .map(|placements| placements.iter().map(|p| p.start).collect())
    }

    #[test]
    fn three_g_yields_the_half_that_two_g_needs() {
        // A 3g at 0 would leave one compute slice too few behind it.
        assert_eq!(starts(&[], "3g 2g 1g 1g"), Some(vec![4, 2, 0, 1]));
        assert_eq!(starts(&[], "1g 1g 2g 3g"), Some(vec![0, 1, 2, 4]));
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
            assert_eq!(starts(&[], names), None, "{names}");
        }
    }

    #[test]
    fn a_pinned_placement_is_kept_to() {
        assert_eq!(starts(&[], "1g@6 1g"), Some(vec![6, 0]));
        assert_eq!(starts(&[], "2g@1"), None);
    }

    #[test]
    fn the_largest_free_block_is_left() {
        assert_eq!(starts(&[], "1g"), Some(vec![0]));
        // Beside 4-5, a 1g at 0 leaves 3 units in a row, at 3 it leaves 0-2, at 6 it leaves 0-3.
        assert_eq!(starts(&[], "2g@4 1g"), Some(vec![4, 6]));
    }

    #[test]
    fn what_stands_is_kept_or_the_request_is_infeasible() {
        let three_at_4 = Standing {
            profile: ProfileId(9),
            placement: Placement::new(4, 4),
        };
        assert_eq!(starts(&[three_at_4], "3g 3g"), Some(vec![0, 4]));
        assert_eq!(starts(&[three_at_4], "1g 3g"), Some(vec![0, 4]));
        assert_eq!(starts(&[three_at_4], "4g"), None);
        assert_eq!(starts(&[three_at_4], ""), None);
    }

    #[test]
    fn the_order_of_requests_never_decides_feasibility() {
        let names = ["1g", "1g+me", "1g.20gb", "2g", "3g", "4g", "7g"];
        for a in names {
            for b in names {
                for c in names {
                    let forward = starts(&[], &format!("{a} {b} {c}")).is_some();
                    for order in [[a, c, b], [b, a, c], [b, c, a], [c, a, b], [c, b, a]] {
                        assert_eq!(
                            starts(&[], &order.join(" ")).is_some(),
                            forward,
                            "{order:?}"
                        );
                    }
                }
            }
        }
    }
}
