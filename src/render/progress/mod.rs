//! The progress of a change: a line for each GPU on a terminal, a line for each event elsewhere.

mod bars;
mod json;
mod plain;

use bars::Bars;
use clap::ValueEnum;
use json::Json;
use plain::Plain;

use super::output::{is_dumb, is_watched, note};
use crate::apply::{Progress, StepOf};
use crate::plan::{GpuPlan, Plan};

pub use json::ProgressDocument;

/// The form of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProgressForm {
    /// Lines that change on a terminal, plain elsewhere
    Auto,
    /// A line for each step, with the time that it took
    Plain,
    /// A JSON object for each event, on standard error
    Json,
    /// None
    None,
}

/// Returns the receiver of the events of a plan's run.
pub fn progress(plan: &Plan, form: ProgressForm) -> Box<dyn Progress> {
    match form {
        ProgressForm::Auto if is_watched() && !is_dumb() => Box::new(Bars::new(plan)),
        ProgressForm::Auto | ProgressForm::Plain => Box::new(Plain::default()),
        ProgressForm::Json => Box::new(Json::default()),
        ProgressForm::None => Box::new(Silent),
    }
}

/// Shows notes alone.
struct Silent;

impl Progress for Silent {
    fn begin(&self, _step: StepOf<'_>) {}

    fn waits(&self, _step: StepOf<'_>, _others: &str) {}

    fn end(&self, _step: StepOf<'_>, _is_done: bool) {}

    fn undoes(&self, _gpu: &GpuPlan) {}

    fn note(&self, what: &str) {
        note(what);
    }
}
