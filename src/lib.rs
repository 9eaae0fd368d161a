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
//! The modules, from the lowest layer up:
//!
//! - [`failure`]: exit statuses, and the trait of errors that can end a command
//! - [`config`]: environment variables, default paths, names of programs
//! - [`geometry`], [`settings`]: pure values
//! - [`host`]: processes, users, files, limits; one root prefix
//! - [`catalog`], [`profile`]: GPU models as data, the profile file
//! - [`nvml`], [`mps`], [`cuda`]: the interfaces to the driver, to one MPS daemon, and to CUDA
//! - [`state`]: the run directory, and the profiles that were applied
//! - [`node`]: the snapshot
//! - [`plan`]: pure planning, also for GPUs that are not there
//! - [`apply`]: runs a plan, with rollback
//! - [`client`]: programs that use a device
//! - [`render`]: tables, JSON, questions
//! - [`error`]: the error that ends a command
//! - [`commands`]: the subcommands that every user meets
//! - [`shared`]: what several features share
//! - [`features`]: the others, a folder each
//! - [`internal_commands`]: the programs that mig-mps starts of itself
//! - [`cli`]: the command line

#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the modules are private: the map is for those who work on them"
)]

pub(crate) mod apply;
pub(crate) mod catalog;
pub mod cli;
pub(crate) mod client;
pub(crate) mod commands;
pub(crate) mod config;
pub(crate) mod cuda;
pub(crate) mod error;
pub(crate) mod failure;
pub(crate) mod features;
pub(crate) mod geometry;
pub(crate) mod host;
pub(crate) mod internal_commands;
pub(crate) mod mps;
pub(crate) mod node;
pub(crate) mod nvml;
pub(crate) mod plan;
pub(crate) mod profile;
pub(crate) mod render;
pub(crate) mod settings;
pub(crate) mod shared;
pub(crate) mod state;

/// The items that tests of this package use. Everything else is private, so the compiler reports what nothing uses.
#[doc(hidden)]
pub mod internals {
    pub mod advise {
        pub use crate::features::advise::smallest_layout;
    }
    pub mod apply {
        pub use crate::apply::{
            Allowed, ApplyContext, ApplyError, OnFailure, Progress, StepOf, pick_up, run,
        };
    }
    pub mod catalog {
        pub use crate::catalog::{BuiltIn, Model, incomplete, models, named};
    }
    pub mod config {
        pub use crate::config::VARIABLES;
    }
    pub mod convert {
        pub use crate::features::convert::export::export;
        pub use crate::features::convert::import::{ImportOptions, import};
        pub use crate::features::convert::manifest::ConfigTexts;
        pub use crate::features::convert::mig_parted::{self, MigDevice, pack};
        pub use crate::features::convert::yaml::Excerpt;
    }
    #[cfg(feature = "kubernetes")]
    pub mod kubernetes {
        pub use crate::features::kubernetes::{v1, v1beta1};
    }
    pub mod mps {
        pub use crate::mps::{DaemonStatus, LogFile, LogLine};
    }
    pub mod slurm {
        pub use crate::features::slurm::{
            Gres, GresConf, SlurmFiles, SlurmJob, gres_of_node, numbered,
        };
    }
    pub mod failure {
        pub use crate::failure::{ExitStatus, Failure};
    }
    pub mod geometry {
        pub use crate::geometry::{
            ComputeChoice, ComputeInstanceId, ComputeInstanceProfile, ComputeName,
            ComputeProfileId, Disruption, Existing, GpuInstanceId, GpuInstanceProfile, Placement,
            ProfileEnum, ProfileId, Request, arrange,
        };
    }
    pub mod host {
        pub use crate::host::{
            Directories, Environment, Holders, Host, MpsPrograms, NvidiaSmi, Pid, StartTime,
            ToolError, Uid, Unit, Units, run,
        };
    }
    pub mod manual {
        pub use crate::features::manual::{ALIASES, TOPICS};
    }
    pub mod node {
        pub use crate::node::{
            Client, Clients, DaemonState, Detail, Device, Gpu, Node, Presence, Served, Unseen,
            observe,
        };
    }
    pub mod nvml {
        pub use crate::nvml::{ComputeInstanceReading, GpuInstanceReading, MigMode, Nvml};
    }
    pub mod plan {
        pub use crate::plan::{
            Action, GpuPlan, LeftOut, Place, Plan, Purge, Refusal, Start, Step, Unselected, up,
            up_in_part,
        };
        pub mod check {
            pub use crate::plan::virtual_node::{EmptyNode, GpuArgument, check_on_gpus, plan_on};
        }
    }
    pub mod profile {
        pub use crate::profile::{Profile, Want, WantedPrograms};
    }
    pub mod settings {
        pub use crate::settings::{Serve, Server, Settings};
    }
    pub mod state {
        pub use crate::state::{
            AppliedProfile, DeviceKey, DeviceRecord, ProcessId, RecordedGpu, RunDir,
        };
    }
}
