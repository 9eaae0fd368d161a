//! Profiles out of what other tools wrote, out of what a node has now, and out of a few answers.
//!
//! A [`DraftProfile`] is a profile on its way to being a file; [`mig_parted`] is the other tool's format.

mod draft;
mod export;
mod first_profile;
mod import;
pub mod mig_parted;
mod to_mig_parted;

pub use draft::{Converted, DraftBlock, DraftDevices, DraftEntry, DraftProfile, DraftSelect};
pub use export::export;
pub use first_profile::{
    Answers, Choice, EmptyNode, GpuGroup, GroupSupply, Supply, TooManyJobs, first_profile,
    gib_at_most,
};
pub use import::{ImportOptions, import};
pub use mig_parted::{MigDevice, pack};
pub use to_mig_parted::to_mig_parted;

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
