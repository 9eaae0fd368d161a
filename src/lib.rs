//! mig-mps turns one declarative file into GPUs that are partitioned with MIG and shared with MPS.
//!
//! Data flows one way. A [`profile`] says what is wanted, a [`node`] what is there, a [`plan`] what
//! must happen and why; only [`apply`] changes the node, and it runs exactly the plan that was shown.
//!
//! ```text
//! profile.toml ─► Profile ─┐
//!                          ├─► Plan ─► apply ─► Node (read back) ─► render
//! NVML, host, run dir ─► Node ─┘
//! ```
//!
//! Beside that way, [`plan::check`] plans for GPUs of the [`catalog`] where there is none, and [`convert`] makes
//! profiles out of what other tools wrote and of what a node has.
//!
//! [`commands`] stand on `apply`, `plan`, `node` and [`render`]; those on [`geometry`] and `profile`;
//! the three doors to the outside are [`nvml`], [`mps`] and [`host`]. Nothing below `commands` prints.

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
pub mod mps;
pub mod node;
pub mod nvml;
pub mod plan;
pub mod profile;
pub mod render;
pub mod settings;
pub mod state;
