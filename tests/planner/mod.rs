//! The planner against every model and every layout, enumerated: no GPU, no simulated node, no I/O.

mod brute;
mod joint;
pub(crate) mod mig_parted_config;
mod mig_parted_files;
mod model;
mod models;
mod pairs;
mod round_trip;
mod sequences;
mod speed;
mod testbed;
