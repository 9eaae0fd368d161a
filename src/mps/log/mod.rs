//! Reads control.log and server.log: who wrote each line when, and what it means.
//!
//! The wording differs between drivers, so lines are only shown, some with an explanation. An unknown line is shown
//! as it is.

mod directory;
mod line;
mod rules;

pub(crate) use directory::split;
pub use directory::{LogDir, LogTail, needs_rotation, rotate};
pub(super) use line::{LOG_END, cuda_error, diagnose, logged_fault, logged_limit};
pub use line::{LogFile, LogLine, logged_ready};
pub use rules::{LineKind, Meaning};
