//! The output of commands: tables, JSON, progress, questions.

pub mod consequences;
mod device;
pub mod findings;
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

pub use format::{format_time_taken, wrap_behind};
pub use json::print_json;
pub use output::{
    finish_printing, is_quiet, is_watched, note, output_width, print, print_error, print_lines,
    print_paged, print_styled_note, print_styled_note_always, report, set_quiet, start_tracing,
    terminal_width, warn,
};
pub use progress::{ProgressForm, start_progress};
pub use question::{Consent, Question, ask_question, ask_yes_no, can_ask, obtain_consent};
pub use screen::{Screen, restore_terminal};
pub use usage::{
    KnownDevices, OTHER_OPTIONS, STYLES, command_for, examples, examples_and_statuses,
    help_section, usage_error, with_help_form, with_page_form, with_topics, words_for,
};
