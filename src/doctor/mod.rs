//! Checks of the node: why does MIG or MPS not work here?
//!
//! Each file has the checks of one subject as a table. A check judges an [`Examined`] node and returns what it has found.
//! Problems that `status` reports are checks too, by the same ids.

mod check;
mod daemons;
mod directories;
mod driver;
mod gpus;
mod surroundings;

pub use check::{
    AttachResult, Attached, Check, Diagnosis, Examined, Explanation, Finding, Severity, Subject,
    examine, explain, ids,
};
