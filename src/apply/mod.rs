//! Applies a plan: GPUs in parallel, the steps of one GPU in order.
//!
//! The run records what it does, and undoes it when a later step fails or the user interrupts it: a failed
//! `up` leaves the node as it found it, and makes again what it had destroyed. Where the driver refuses
//! even that, the report says what is left over and what is missing. A journal in the run directory
//! tells the next run of one that was killed.
//!
//! The files have an order: each uses only those before it in this list.
//!
//! 1. `cause` and `error`: why a step failed, and all that failed in a run.
//! 2. `journal`: the change that is running, and the instances that mig-mps made, both as the run directory has them.
//! 3. `context`: what every step may use, whatever it changes.
//! 4. `gpu_state`: the state of a GPU, which its steps change, and the course of the run there.
//! 5. The steps, which do not know the runner. Daemons: `start_check`, `compute_mode`, `daemon_stop`, `closing`, then `daemons`. Instances:
//!    `in_use`, then `mig_mode` and `instances`. Programs and files: `kill` and `purge`.
//! 6. `rollback`: the difference of two states of a GPU, as steps.
//! 7. `gpu`: runs the steps on one GPU, those of the plan and those back.
//! 8. `run`: runs a plan on all GPUs.

mod cause;
mod closing;
mod compute_mode;
mod context;
mod daemon_stop;
mod daemons;
mod error;
mod gpu;
mod gpu_state;
mod in_use;
mod instances;
mod joint;
mod journal;
mod kill;
mod mig_mode;
mod purge;
mod rollback;
mod run;
mod start_check;

pub use closing::{Closed, daemon_of_closing, reopen, retry_end};
pub use context::{Allowed, ApplyContext, OnFailure, Progress, StepOf};
pub use error::ApplyError;
pub use in_use::{find_held_gpus, wait_for_holders};
pub use journal::{load_journal, pick_up, record_missing};
pub use purge::{has_large_logs, rotate_daemon_logs};
pub use run::run;
pub use start_check::{begin_lookups, check_starts, has_recorded_id};
