//! Profiles out of what mig-parted reads and out of what a node has now, and back.

pub mod export;
pub mod import;
pub mod manifest;
pub mod mig_parted;
mod names;
pub mod to_mig_parted;
pub mod yaml;
