//! Every set of instances that fits on one GPU.

use super::request::{Counts, can_exist};
use super::{GpuInstanceProfile, Placement, Request};

/// Instances that are interchangeable.
pub(super) struct Kind<'a> {
    pub(super) profile: &'a GpuInstanceProfile,
    /// The start of their placement, if pinned.
    pub(super) at: Option<u32>,
    /// The most that are wanted.
    pub(super) most: u32,
}

/// Instances that fit together, and every set of units they can occupy.
#[derive(Clone)]
pub(super) struct Fitting<'a> {
    pub(super) requests: Vec<Request>,
    pub(super) counts: Counts<'a>,
    /// A bit for each unit.
    occupied: Vec<u64>,
}

/// Every way to put instances of these kinds together; the last one has the most of the first kind.
pub(super) fn fittings<'a>(kinds: &[Kind<'a>]) -> Vec<Fitting<'a>> {
    let mut all = vec![Fitting::nothing()];
    for kind in kinds {
        let longer = |fitting: Fitting<'a>| {
            let more = std::iter::successors(Some(fitting), |fitting| fitting.clone().with(kind));
            more.take(kind.most as usize + 1)
        };
        all = all.into_iter().flat_map(longer).collect();
    }
    all
}

impl<'a> Fitting<'a> {
    pub(super) fn nothing() -> Self {
        Self {
            requests: Vec::new(),
            counts: Vec::new(),
            occupied: vec![0],
        }
    }

    /// One more; `None` where it does not fit.
    fn with(mut self, kind: &Kind<'a>) -> Option<Self> {
        let profile = kind.profile;
        self.requests.push(Request {
            profile: profile.id,
            at: kind.at,
            entry: 0,
        });
        match self.counts.iter_mut().find(|(p, _)| p.id == profile.id) {
            Some((_, count)) => *count += 1,
            None => self.counts.push((profile, 1)),
        }
        if !can_exist(&self.counts) {
            return None;
        }
        let places = profile.placements.iter();
        let places = places.filter(|place| kind.at.is_none_or(|at| place.start == at));
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
