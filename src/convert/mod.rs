//! Profiles out of what other tools wrote, out of what a node has now, and out of a few answers.
//!
//! A [`DraftProfile`] is a profile on its way to being a file; [`mig_parted`] is the other tool's format.

mod device_filter;
mod draft;
mod empty_node;
mod export;
mod first_profile;
mod gpu_block;
mod import;
pub mod mig_parted;
mod name;
mod packing;
mod selection;
mod supply;
mod to_mig_parted;
mod yaml;

pub use draft::{Converted, DraftBlock, DraftDevices, DraftEntry, DraftProfile, DraftSelect};
pub use empty_node::{EmptyNode, GpuGroup, gib_at_most};
pub use export::export;
pub use first_profile::{Answers, Choice, first_profile};
pub use import::{ImportOptions, import};
pub use packing::{MigDevice, pack};
pub use supply::{GroupSupply, Supply, TooManyJobs};
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
