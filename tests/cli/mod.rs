//! Runs the real program on simulated nodes and looks at what a user sees.

mod advice;
mod advise;
pub(crate) mod change;
mod compare;
mod devices;
mod doctor;
mod documents;
mod faults;
mod jobs;
mod joint;
mod metrics;
mod mistyped;
mod profile;
pub(crate) mod run;
mod selftest;
mod slurm;
mod status;
mod systemd;
mod trace;
