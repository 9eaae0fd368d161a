//! Reads control.log and server.log: who wrote each line when, and what it means.
//!
//! The wording differs between drivers, so lines are only shown, some with an explanation. An unknown line is shown
//! as it is.

mod control_rules;
mod diagnosis;
mod directory;
mod file;
mod line;
mod rule;
mod rules;
mod server_rules;
mod server_state;

pub(super) use diagnosis::{cuda_error, diagnose};
pub(crate) use directory::split;
pub use directory::{LogDir, LogTail};
pub(crate) use file::KEPT;
pub use file::LogFile;
pub use line::LogLine;
pub use rule::{Kind, Meaning};
pub use server_state::logged_ready;
pub(super) use server_state::{LOG_END, logged_fault, logged_limit};
