use super::{GpuInstanceProfile, ProfileId};

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
pub fn count<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<(T, u32)> {
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
pub(super) fn find(offered: &[GpuInstanceProfile], id: ProfileId) -> Option<&GpuInstanceProfile> {
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
        if name.has("+me.all") {
            all += count;
        } else if name.has("+me") {
            extra += count;
        } else if !name.has("-me") {
            plain += count;
        }
    }
    let engines_suffice = extra + all <= 1 && (all == 0 || plain == 0);
    engines_suffice && wanted.iter().all(|(profile, count)| *count <= profile.most)
}
