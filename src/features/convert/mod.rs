//! Profiles out of what mig-parted reads and out of what a node has now, and back.

pub mod export;
pub mod import;
pub mod mig_parted;
pub mod to_mig_parted;

/// Collects the values of equal keys, in the order of first occurrence.
fn grouped<K: PartialEq, V>(pairs: impl Iterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in pairs {
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, values)) => values.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}
