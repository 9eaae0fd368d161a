//! Applies a plan: GPUs in parallel, the steps of one GPU in order.
//!
//! The run records what it does, and undoes it when a later step fails or the user interrupts it: a failed
//! `up` leaves the node as it found it, and makes again what it had destroyed. Where the driver refuses
//! even that, the report says what is left over and what is missing. A journal in the run directory
//! tells the next run of one that was killed.

mod cause;
mod compute_mode;
mod context;
mod daemon_stop;
mod daemons;
mod error;
mod gpu;
mod gpu_state;
mod in_use;
mod instances;
mod journal;
mod kill;
mod mig_mode;
mod purge;
mod rollback;
mod run;
mod start_check;

pub use context::{Allowed, ApplyContext, OnFailure, Progress, StepOf};
pub use error::ApplyError;
pub use in_use::{find_held_gpus, wait_for_holders};
pub use journal::{load_journal as read_journal, pick_up, record_missing};
pub use purge::{has_large_logs, rotate_daemon_logs};
pub use run::run;
pub use start_check::{begin_lookups, check_starts, has_recorded_id};
