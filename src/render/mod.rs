//! The output of commands: tables, JSON, progress, questions.

mod check;
mod consequences;
mod format;
mod json;
mod kill;
mod list;
mod logs;
mod logs_json;
mod models;
mod output;
mod pager;
mod plan;
mod plan_json;
mod progress;
mod question;
mod screen;
mod status;
mod table;
mod ui;
mod unmanaged;

pub use logs::LogView;
pub use output::{error, note};
pub use screen::{Key, Screen, restore_terminal};
pub use status::StatusColumn;
pub use ui::{Consent, NoConsent, Ui};
