//! The geometries that are made: each profile of the GPU is in one.

use std::fmt::Write as _;

use crate::partition::{Profile, overlap};

/// One geometry: what is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(crate) parts: Vec<Part>,
}

/// One GPU instance.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) profile: Profile,
    /// The compute instances; none for the one that has all SMs.
    pub(crate) compute: Vec<&'static str>,
    /// A place with room beside the others, which mig-mps does not learn.
    place: (u32, u32),
}

/// Geometries that have all profiles, the one with the most devices first.
pub(crate) fn of(profiles: &[Profile]) -> Vec<Round> {
    let mut left: Vec<&Profile> = profiles.iter().collect();
    left.sort_by_key(|profile| std::cmp::Reverse((profile.places[0].1, profile.sm)));
    let mut rounds = Vec::new();
    while !left.is_empty() {
        let mut parts = Vec::new();
        // The first one fits an empty GPU, so this ends.
        left.retain(|profile| !add(&mut parts, profile, profiles));
        fill(&mut parts, profiles);
        rounds.push(Round { parts });
    }
    rounds.sort_by_key(|round| std::cmp::Reverse(round.parts.len()));
    let mut is_split = [false; 2];
    for part in rounds.iter_mut().flat_map(|round| &mut round.parts) {
        // One GPU instance in equal parts and one in unequal ones are enough.
        let (which, compute) = match part.profile.slices {
            2 => (0, vec!["1c", "1c"]),
            3 => (1, vec!["2c", "1c"]),
            _ => continue,
        };
        if part.profile.is_plain() && !is_split[which] {
            is_split[which] = true;
            part.compute = compute;
        }
    }
    rounds
}

/// Add an instance if there is room, and say whether there was.
fn add(parts: &mut Vec<Part>, profile: &Profile, all: &[Profile]) -> bool {
    let media_left = (0..4).all(|engine| {
        let whole = all.iter().map(|profile| profile.media[engine]).max();
        let taken: u32 = parts.iter().map(|part| part.profile.media[engine]).sum();
        taken + profile.media[engine] <= whole.unwrap_or(0)
    });
    let is_free = |place: &&(u32, u32)| parts.iter().all(|part| !overlap(part.place, **place));
    // From the end: the first units are those that the largest profiles need.
    let place = profile.places.iter().rev().find(is_free);
    let Some(place) = place.filter(|_| media_left) else {
        return false;
    };
    parts.push(Part {
        profile: profile.clone(),
        compute: Vec::new(),
        place: *place,
    });
    true
}

/// The rest is for the smallest plain instances.
fn fill(parts: &mut Vec<Part>, profiles: &[Profile]) {
    let plain = profiles.iter().filter(|profile| profile.is_plain());
    if let Some(small) = plain.min_by_key(|profile| (profile.places[0].1, profile.sm)) {
        while add(parts, small, profiles) {}
    }
}

impl Round {
    /// The profile for mig-mps.
    pub(crate) fn toml(&self, uuid: &str) -> String {
        let mut text = format!("[[gpu]]\nselect = {{ uuid = \"{uuid}\" }}\ndevices = [\n");
        for part in &self.parts {
            // A String takes everything.
            let _ = write!(text, "  {{ profile = \"{}\"", part.profile.name);
            if !part.compute.is_empty() {
                let _ = write!(text, ", compute = {:?}", part.compute);
            }
            text.push_str(" },\n");
        }
        text + "]\n"
    }

    /// The number of MIG devices.
    pub(crate) fn devices(&self) -> usize {
        let parts = self.parts.iter();
        parts.map(|part| part.compute.len().max(1)).sum()
    }

    /// The profile IDs, sorted.
    pub(crate) fn profile_ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.parts.iter().map(|part| part.profile.id).collect();
        ids.sort_unstable();
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::{Profile, of};

    fn profile(name: &str, slices: u32, ofa: u32, places: &[(u32, u32)]) -> Profile {
        Profile {
            id: u32::try_from(name.len()).unwrap() + slices * 100,
            name: name.into(),
            slices,
            sm: slices * 14,
            most: 7,
            media: [0, 0, 0, ofa],
            places: places.to_vec(),
        }
    }

    #[test]
    fn every_profile_has_its_round() {
        let quarters = [0, 1, 2, 3].map(|start| (start, 1));
        let all = [
            profile("1g.6gb", 1, 0, &quarters),
            profile("1g.6gb+me", 1, 1, &quarters),
            profile("2g.12gb", 2, 0, &[(0, 2), (2, 2)]),
            profile("2g.12gb+me", 2, 1, &[(0, 2), (2, 2)]),
            profile("4g.24gb", 4, 1, &[(0, 4)]),
        ];
        let shown: Vec<String> = of(&all).iter().map(|round| round.toml("U")).collect();
        let head = "[[gpu]]\nselect = { uuid = \"U\" }\ndevices = [\n";
        let bodies: Vec<&str> = shown
            .iter()
            .map(|text| text.strip_prefix(head).unwrap())
            .collect();
        assert_eq!(
            bodies,
            [
                "  { profile = \"1g.6gb\" },\n  { profile = \"1g.6gb+me\" },\n  { profile = \"1g.6gb\" },\n  \
                 { profile = \"1g.6gb\" },\n]\n",
                "  { profile = \"2g.12gb\", compute = [\"1c\", \"1c\"] },\n  { profile = \"2g.12gb+me\" },\n]\n",
                "  { profile = \"4g.24gb\" },\n]\n",
            ]
        );
    }
}
