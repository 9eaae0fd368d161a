//! Profiles out of what other tools wrote, and out of what a node has now.
//!
//! A [`DraftProfile`] is a profile on its way to being a file; [`mig_parted`] is the other tool's format.

mod device_filter;
mod draft;
mod export;
mod gpu_block;
mod import;
pub mod mig_parted;
mod name;
mod packing;
mod selection;
mod to_mig_parted;
mod yaml;

pub use draft::{Converted, DraftBlock, DraftDevices, DraftEntry, DraftProfile, DraftSelect};
pub use export::export;
pub use import::{ImportOptions, import};
pub use packing::{MigDevice, pack};
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
