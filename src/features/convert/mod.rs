//! Profiles out of what mig-parted reads, and out of what a node has now.

pub mod export;
pub mod import;
pub mod manifest;
pub mod mig_parted;
mod names;
pub mod yaml;
