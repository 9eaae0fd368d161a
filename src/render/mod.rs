//! The output of commands: tables, JSON, progress, questions.

pub mod consequences;
pub mod format;
pub mod json;
pub mod list;
mod output;
pub mod plan;
mod progress;
mod question;
mod screen;
pub mod status;
pub mod table;
mod usage;
pub mod verified;

pub use format::{hanging, time_taken};
pub use json::print_json;
pub use output::{
    be_quiet, error, finish_printing, is_quiet, is_watched, note, page, print, print_as_it_is,
    print_lines, say, tell, terminal_width, trace, width,
};
pub use progress::{ProgressForm, progress};
pub use question::{Consent, Question, agrees, answer, can_ask, confirm};
pub use screen::{Screen, restore_terminal};
pub use usage::{command_for, usage_error, words_for};
