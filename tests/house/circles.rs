//! Circles between files.

use std::collections::{BTreeMap, BTreeSet};

/// The pairs of a graph that lie on a circle: from each, a way leads back.
pub(crate) fn circles<'a>(pairs: &BTreeSet<(&'a str, &'a str)>) -> BTreeSet<(&'a str, &'a str)> {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, to) in pairs {
        next.entry(from).or_default().push(to);
    }
    let leads = |from: &str, to: &str| {
        let mut seen = BTreeSet::from([from]);
        let mut left = vec![from];
        while let Some(file) = left.pop() {
            if file == to {
                return true;
            }
            let following = next.get(file).into_iter().flatten();
            left.extend(following.filter(|file| seen.insert(**file)));
        }
        false
    };
    let on_circle = pairs.iter().filter(|(from, to)| leads(to, from));
    on_circle.copied().collect()
}

#[test]
fn only_pairs_on_a_circle_count() {
    let pairs = BTreeSet::from([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e")]);
    let expected = BTreeSet::from([("a", "b"), ("b", "c"), ("c", "a")]);
    assert_eq!(circles(&pairs), expected);
}
