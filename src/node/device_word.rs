//! Devices by the words of a command line.

use std::collections::BTreeSet;

use regex::Regex;

use super::NoSuchDevice;

/// A device that a word can mean.
pub(super) struct Candidate<'a, T> {
    pub(super) value: T,
    /// Its name, if it has one.
    pub(super) name: Option<&'a str>,
    /// Its UUID, and earlier ones.
    pub(super) uuids: Vec<&'a str>,
}

impl<T> Candidate<'_, T> {
    fn fits(&self, test: impl Fn(&str) -> bool) -> bool {
        self.name.is_some_and(&test) || self.uuids.iter().any(|uuid| test(uuid))
    }

    fn title(&self) -> &str {
        self.name
            .or(self.uuids.first().copied())
            .unwrap_or_default()
    }
}

/// Returns the devices that a word means: one by its name, its UUID, or a unique prefix of either, or all that a glob
/// such as `trainer-*` matches.
pub(super) fn select<T>(
    word: &str,
    mut candidates: Vec<Candidate<'_, T>>,
) -> Result<Vec<T>, NoSuchDevice> {
    let mut known: Vec<String> = candidates
        .iter()
        .map(|one| one.title().to_owned())
        .collect();
    let glob = glob(word);
    if let Some(glob) = &glob {
        // Every UUID is full of digits and dashes: only a glob that is meant for UUIDs is held against them.
        let is_for_uuids = ["MIG-", "GPU-"].iter().any(|kind| word.starts_with(kind));
        candidates.retain(|one| {
            if is_for_uuids {
                one.uuids.iter().any(|uuid| glob.is_match(uuid))
            } else {
                glob.is_match(one.title())
            }
        });
    } else if candidates.iter().any(|one| one.fits(|text| text == word)) {
        candidates.retain(|one| one.fits(|text| text == word));
    } else {
        candidates.retain(|one| one.fits(|text| text.starts_with(word)));
    }
    let wanted = word.to_owned();
    match candidates.len() {
        0 => Err(NoSuchDevice::Unknown { wanted, known }),
        2.. if glob.is_none() => {
            known = candidates
                .iter()
                .map(|one| one.title().to_owned())
                .collect();
            // The logs of several devices can have the same name.
            if known.iter().collect::<BTreeSet<_>>().len() < candidates.len() {
                let uuids = candidates.iter().filter_map(|one| one.uuids.first());
                known = uuids.map(|&uuid| uuid.to_owned()).collect();
            }
            Err(NoSuchDevice::Ambiguous { wanted, known })
        }
        _ => Ok(candidates.into_iter().map(|one| one.value).collect()),
    }
}

/// Returns the pattern of a word with `*`, `?` or `[…]`.
fn glob(word: &str) -> Option<Regex> {
    if !word.contains(['*', '?', '[']) {
        return None;
    }
    let pattern = regex::escape(word)
        .replace(r"\*", ".*")
        .replace(r"\?", ".")
        .replace(r"\[!", "[^")
        .replace(r"\[", "[")
        .replace(r"\]", "]")
        .replace(r"\-", "-");
    Regex::new(&format!("^(?:{pattern})$")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(word: &str) -> Result<Vec<u32>, String> {
        let all = [
            ("trainer-1", "MIG-11"),
            ("trainer-10", "MIG-12"),
            ("0.0", "MIG-21"),
            ("0.2", "MIG-22"),
            ("1", "GPU-1"),
        ];
        let candidates = (0..).zip(all).map(|(value, (name, uuid))| Candidate {
            value,
            name: Some(name),
            uuids: vec![uuid],
        });
        select(word, candidates.collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_name_a_uuid_and_a_unique_prefix_mean_one() {
        for (word, number) in [
            ("trainer-1", 0),
            ("trainer-10", 1),
            ("MIG-21", 2),
            ("0.2", 3),
            ("1", 4),
            ("G", 4),
        ] {
            assert_eq!(selected(word), Ok(vec![number]), "{word}");
        }
        assert_eq!(
            selected("train"),
            Err("\"train\" can mean trainer-1 or trainer-10".to_owned())
        );
        assert_eq!(
            selected("MIG-"),
            Err("\"MIG-\" can mean trainer-1, trainer-10, 0.0 or 0.2".to_owned())
        );
        assert_eq!(selected("2"), Err("no device is called \"2\"".to_owned()));
    }

    #[test]
    fn a_glob_means_all_that_it_matches() {
        for (word, numbers) in [
            ("trainer-*", vec![0, 1]),
            ("*", vec![0, 1, 2, 3, 4]),
            ("0.?", vec![2, 3]),
            ("0.[0-1]", vec![2]),
            ("0.[!0]", vec![3]),
            ("MIG-1*", vec![0, 1]),
            ("*-1*", vec![0, 1]),
        ] {
            assert_eq!(selected(word), Ok(numbers), "{word}");
        }
        assert!(
            selected("x*")
                .unwrap_err()
                .contains("no device is called \"x*\"")
        );
        assert!(selected("*-2*").is_err());
        assert!(selected("[").is_err());
    }
}
