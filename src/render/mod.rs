//! The output of commands: tables, JSON, progress, questions.

pub mod check;
pub mod comparison;
mod consent;
pub mod consequences;
pub mod doctor;
mod format;
pub mod json;
mod kill;
pub mod list;
mod logs;
mod markdown;
mod markdown_table;
pub mod models;
mod output;
mod pager;
pub mod partitions;
pub mod plan;
pub mod profiles;
mod progress;
mod question;
mod screen;
mod slice_map;
pub mod status;
mod table;
mod trace;
pub mod unmanaged;
mod usage;
pub mod verified;

pub use consent::{Consent, NoConsent, confirm};
pub use format::{behind, time_taken};
pub use json::print_json;
pub use logs::LogView;
pub use markdown::markdown;
pub use output::{
    be_quiet, error, is_quiet, is_watched, note, print, print_lines, printed, say, tell,
    terminal_width, width,
};
pub use pager::page;
pub use progress::{ProgressDocument, ProgressForm, Steps, progress};
pub use question::{Question, agrees, answer, can_ask};
pub use screen::{Key, Screen, restore_terminal};
pub use trace::trace;
pub use usage::usage_error;
