//! Which compute instances of a GPU instance stay, and which are made.

use super::instance_use::InstanceUse;
use crate::geometry::{ComputeChoice, ComputeInstanceProfile, Disruption, Placement};
use crate::nvml::ComputeInstanceReading;

/// The changes to the compute instances of a GPU instance that stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ComputeLayout {
    /// The existing ones that stay, and the position of each afterwards.
    pub(super) kept: Vec<(usize, usize)>,
    /// The existing ones that are destroyed.
    pub(super) destroyed: Vec<usize>,
    /// The new ones, in order.
    pub(super) created: Vec<ComputeChoice>,
    /// The disruption that this causes.
    pub(super) disruption: Disruption,
}

/// The compute instances of a new GPU instance: large ones first, so that the driver finds a place for
/// each.
pub(super) fn fresh(wanted: &[u32]) -> Vec<ComputeChoice> {
    let mut sizes = wanted.to_vec();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    match sizes.as_slice() {
        [] => vec![ComputeChoice::Full],
        sizes => sizes
            .iter()
            .map(|&count| ComputeChoice::Slices { count, at: None })
            .collect(),
    }
}

/// Returns the least disruptive way to the wanted compute instances: their slices, or the one with all
/// SMs, `full`, if `wanted` is empty.
///
/// `staying(part, nth)` tells what happens to the daemon of a standing one that becomes the nth.
pub(super) fn layout(
    standing: &InstanceUse<'_>,
    wanted: &[u32],
    full: u32,
    staying: &dyn Fn(usize, usize) -> Disruption,
) -> ComputeLayout {
    let count = standing.parts.len();
    let subsets = 0_u32..1 << count.min(16);
    let layouts = subsets.filter_map(|subset| {
        let kept: Vec<usize> = (0..count).filter(|nth| subset & 1 << nth != 0).collect();
        keeping(standing, &kept, wanted, full, staying)
    });
    // It is always possible to destroy every one.
    layouts
        .min_by_key(|layout| layout.disruption)
        .unwrap_or_default()
}

fn keeping(
    standing: &InstanceUse<'_>,
    kept: &[usize],
    wanted: &[u32],
    full: u32,
    staying: &dyn Fn(usize, usize) -> Disruption,
) -> Option<ComputeLayout> {
    let parts = &standing.parts;
    let created = if wanted.is_empty() {
        let is_full = |&nth: &usize| parts[nth].compute.multiprocessors == full;
        match kept {
            [] => vec![ComputeChoice::Full],
            [one] if is_full(one) => Vec::new(),
            _ => return None,
        }
    } else {
        let missing = missing(standing, kept, wanted)?;
        if kept.is_empty() {
            fresh(&missing)
        } else {
            let taken: Vec<Placement> = kept.iter().map(|&n| parts[n].compute.placement).collect();
            beside(&standing.instance.offered, &taken, missing)?
        }
    };
    let start = |choice: &ComputeChoice| match choice {
        ComputeChoice::Slices { at, .. } => *at,
        _ => None,
    };
    let mut order: Vec<u32> = kept
        .iter()
        .map(|&nth| parts[nth].compute.placement.start)
        .chain(created.iter().filter_map(start))
        .collect();
    order.sort_unstable();
    let number = |nth: usize| {
        let start = parts[nth].compute.placement.start;
        order.iter().filter(|&&other| other < start).count()
    };
    let kept: Vec<(usize, usize)> = kept.iter().map(|&nth| (nth, number(nth))).collect();
    let destroyed: Vec<usize> = (0..parts.len())
        .filter(|nth| !kept.iter().any(|(kept, _)| kept == nth))
        .collect();
    let gone: Disruption = destroyed.iter().map(|&nth| parts[nth].disruption).sum();
    let changed: Disruption = kept.iter().map(|&(part, nth)| staying(part, nth)).sum();
    Some(ComputeLayout {
        kept,
        destroyed,
        created,
        disruption: gone + changed,
    })
}

/// The wanted slices that the kept compute instances do not have; `None` if one of these is not wanted.
fn missing(standing: &InstanceUse<'_>, kept: &[usize], wanted: &[u32]) -> Option<Vec<u32>> {
    let mut missing = wanted.to_vec();
    for &nth in kept {
        let ComputeInstanceReading {
            slices, profile, ..
        } = standing.parts[nth].compute;
        // The one with all SMs can have as many slices as the plain one.
        let plain = plain(&standing.instance.offered, *slices);
        plain
            .is_none_or(|plain| plain.id == *profile)
            .then_some(())?;
        let position = missing.iter().position(|wanted| wanted == slices)?;
        missing.swap_remove(position);
    }
    Some(missing)
}

/// Places for what is missing beside what stays; `None` where there are none, or where the driver
/// does not tell which there are.
fn beside(
    offered: &[ComputeInstanceProfile],
    taken: &[Placement],
    mut missing: Vec<u32>,
) -> Option<Vec<ComputeChoice>> {
    missing.sort_unstable_by(|a, b| b.cmp(a));
    let mut chosen = Vec::new();
    place(offered, taken, &missing, &mut chosen).then_some(())?;
    let choices = missing.iter().zip(chosen);
    Some(
        choices
            .map(|(&count, place)| ComputeChoice::Slices {
                count,
                at: Some(place.start),
            })
            .collect(),
    )
}

fn place(
    offered: &[ComputeInstanceProfile],
    taken: &[Placement],
    missing: &[u32],
    chosen: &mut Vec<Placement>,
) -> bool {
    let Some(&slices) = missing.get(chosen.len()) else {
        return true;
    };
    let Some(profile) = plain(offered, slices) else {
        return false;
    };
    profile.placements.iter().any(|&candidate| {
        let is_free = !taken
            .iter()
            .chain(chosen.iter())
            .any(|other| other.overlaps(candidate));
        if !is_free {
            return false;
        }
        chosen.push(candidate);
        let found = place(offered, taken, missing, chosen);
        if !found {
            chosen.pop();
        }
        found
    })
}

/// The profile of so many slices that `create_compute_instance` takes.
fn plain(offered: &[ComputeInstanceProfile], slices: u32) -> Option<&ComputeInstanceProfile> {
    let of_size = offered.iter().filter(|profile| profile.slices == slices);
    of_size.min_by_key(|profile| profile.id)
}
