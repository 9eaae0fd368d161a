//! Reads control.log and server.log: who wrote each line when, and what it means.
//!
//! The wording differs between drivers, so lines are only shown, some with an explanation. An unknown line is shown
//! as it is.

mod directory;
mod line;
mod rules;

pub(crate) use directory::parse_lines;
pub use directory::{LogDir, LogTail, needs_rotation, rotate_logs};
pub(super) use line::worker_threads;
pub(super) use line::{
    LOG_END, describe_cuda_error, diagnose, log_shows_fault, logged_memory_limit,
};
pub use line::{LogFile, LogLine, log_shows_ready, logged_fault_victims};
pub use rules::{LineKind, Meaning};
