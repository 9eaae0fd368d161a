//! `mig-mps slurm` with a real Slurm: a controller, and a slurmd for each simulated node, all on this machine.
//!
//! Slurm, its files and its sockets are in a directory of the test's own, and see a `/dev` of their own in which the
//! simulated GPUs have device files. The system's `/etc` and `/run` are not touched.

mod begin;
mod crowd;
mod end;
mod grammar;
mod private;
mod reasons;

mod lab;
