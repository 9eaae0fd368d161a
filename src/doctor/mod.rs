//! Checks of the node: why does MIG or MPS not work here?
//!
//! Each file has the checks of one subject as a table. A check judges an [`Examined`] node and returns what it has found.
//! Problems that `status` reports are checks too, by the same ids.

mod attach;
mod check;
mod cuda_codes;
mod daemons;
mod directories;
mod driver;
mod examined;
mod explain;
mod explanation;
mod gpus;
mod instances;
mod others;
mod reported;
mod surroundings;
mod table;

pub use check::{Check, Diagnosis, Finding, Severity, Subject};
pub use examined::{AttachResult, Attached, Examined};
pub use explain::{explain, explanations};
pub use explanation::Explanation;
pub use table::{checks, examine};
