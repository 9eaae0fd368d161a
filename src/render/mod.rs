//! What a person or a program is shown: tables, JSON, progress, questions.

mod check;
mod json;
mod list;
mod models;
mod plan;
mod plan_json;
mod progress;
mod status;
mod table;
mod ui;
mod words;

pub use ui::{Consent, NoConsent, Ui, error, note};
