//! Features: each folder is one, from its arguments to its output, and is read only by those who change it.
//!
//! A feature imports any module below, and no other feature. Only `cli` and `internal_commands` import features.

pub mod advise;
pub mod check;
pub mod compare;
pub mod completion;
pub mod convert;
pub mod doctor;
pub mod job;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod logs;
pub mod manual;
pub mod metrics;
pub mod profiles;
pub mod run;
pub mod selftest;
pub mod slurm;
pub mod systemd;
