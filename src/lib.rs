//! mig-mps turns one declarative file into GPUs that are partitioned with MIG and shared with MPS.
//!
//! Data flows one way. A [`profile`] is what is wanted, a [`node`] is a snapshot, a [`plan`] is what must happen and why.
//! Only [`apply`] changes the node, and it runs exactly the plan that was shown.
//!
//! ```text
//! profile.toml ─► Profile ─┐
//!                          ├─► Plan ─► apply ─► Node (read back) ─► render
//! NVML, host, state ─► Node ─┘
//! ```
//!
//! The rooms, from the ground up:
//!
//! - [`config`]: environment variables, default paths, names of programs
//! - [`geometry`], [`settings`]: pure values
//! - [`host`]: processes, users, files, limits; one root prefix
//! - [`catalog`], [`profile`]: GPU models as data, the profile file
//! - [`nvml`], [`mps`]: the doors to the driver and to one MPS daemon
//! - [`logs`]: following, rotating and explaining MPS logs
//! - [`state`]: the run directory
//! - [`node`]: the snapshot
//! - [`plan`]: pure planning, also for GPUs that are not there
//! - [`convert`]: mig-parted and nodes to profiles
//! - [`apply`]: runs a plan, with rollback
//! - [`render`], [`manual`]: tables, JSON, questions; the manual
//! - [`error`]: exit statuses and hints
//! - [`commands`], [`cli`]: the subcommands

pub mod apply;
pub mod catalog;
pub mod cli;
pub mod commands;
pub mod config;
pub mod convert;
pub mod error;

pub mod geometry;
pub mod host;
pub mod logs;
pub mod manual;
pub mod mps;
pub mod node;
pub mod nvml;
pub mod plan;
pub mod profile;
pub mod render;
pub mod settings;
pub mod state;
