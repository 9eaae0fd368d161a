use super::ProfileId;

/// A request for one GPU instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its profile.
    pub profile: ProfileId,
    /// The start of its placement, if pinned.
    pub at: Option<u32>,
    /// Requests of one entry are interchangeable.
    pub entry: usize,
}

/// Counts each profile, in the order of first occurrence.
pub(super) fn count(profiles: impl Iterator<Item = ProfileId>) -> Vec<(ProfileId, u32)> {
    let mut counts: Vec<(ProfileId, u32)> = Vec::new();
    for profile in profiles {
        match counts.iter_mut().find(|(other, _)| *other == profile) {
            Some((_, count)) => *count += 1,
            None => counts.push((profile, 1)),
        }
    }
    counts
}
