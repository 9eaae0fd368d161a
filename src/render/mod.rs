//! What a person or a program is shown: tables, JSON, progress, questions.

mod beside;
mod check;
mod json;
mod kill;
mod list;
mod logs;
mod logs_json;
mod models;
mod pager;
mod plan;
mod plan_json;
mod progress;
mod question;
mod screen;
mod status;
mod table;
mod ui;
mod words;

pub use logs::LogView;
pub use screen::{Key, Screen, restore_terminal};
pub use status::StatusColumn;
pub use ui::{Consent, NoConsent, Ui, error, note};
