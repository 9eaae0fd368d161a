//! Applies a plan: GPUs in parallel, the steps of one GPU in order.
//!
//! The run records what it does, and undoes it when a later step fails or the user interrupts it: a failed
//! `up` leaves the node as it found it, and makes again what it had destroyed. Where the driver refuses
//! even that, the report says what is left over and what is missing. A journal in the run directory
//! tells the next run of one that was killed.

mod cause;
mod cdi_file;
mod context;
mod effect;
mod error;
mod gpu;
mod held;
mod history;
mod instances;
mod journal;
mod kill;
mod logs;
mod mig_mode;
mod mutex;
mod names;
mod node_record;
mod owner;
mod purge;
mod retry;
mod rollback;
mod run;
mod settings;
mod shared;
mod start;
mod stop;
mod unit_files;

pub use cdi_file::CdiFile;
pub use context::{Allowed, ApplyContext, OnFailure, Progress, StepOf};
pub use error::ApplyError;
pub use held::{held, wait_for_holders};
pub use journal::{pick_up, read as read_journal};
pub use logs::{has_large_logs, put_logs_aside};
pub use node_record::record_profile;
pub use run::run;
pub use unit_files::UnitFiles;
