//! The output of commands: tables, JSON, progress, questions.

pub mod check;
mod consent;
pub mod consequences;
mod format;
mod json;
mod kill;
pub mod list;
mod logs;
pub mod logs_json;
pub mod models;
mod output;
mod pager;
pub mod plan;
pub mod plan_json;
mod progress;
mod question;
mod screen;
pub mod status;
mod table;
pub mod unmanaged;

pub use consent::{Consent, NoConsent, confirm};
pub use logs::LogView;
pub use output::{error, note, print, print_json, say, terminal_width, width};
pub use pager::page;
pub use progress::Bar;
pub use screen::{Key, Screen, restore_terminal};
