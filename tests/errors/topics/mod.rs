//! The scenes, by topic.

use crate::errors::book::Play;

mod clients;
mod convert;
mod daemons;
mod devices;
mod directories;
mod driver;
mod mig;
mod plan;
mod profile;
mod run;
mod slurm;
mod systemd;
mod usage;

/// All topics, in the order in which they are read.
pub(crate) const TOPICS: &[(&str, Play)] = &[
    ("Profile files", profile::play),
    ("Devices that are named", devices::play),
    ("The plan is refused", plan::play),
    ("MIG mode and instances", mig::play),
    ("Daemons that do not start", daemons::play),
    ("Clients", clients::play),
    ("run, env and verify", run::play),
    ("Directories, rights and limits", directories::play),
    ("The driver and the GPUs", driver::play),
    ("Slurm", slurm::play),
    ("systemd", systemd::play),
    ("init, import and export", convert::play),
    ("Usage", usage::play),
];
