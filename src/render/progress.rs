use indicatif::{ProgressBar, ProgressStyle};

use super::output::note;
use crate::apply::Progress;
use crate::plan::{Action, Plan};

/// A progress bar over the steps of a plan. It shows on a terminal only.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
}

impl Bar {
    pub fn new(plan: &Plan) -> Self {
        Self {
            bar: bar(plan.steps().count()),
        }
    }
}

/// Returns a bar over this number of steps.
fn bar(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(u64::try_from(steps).unwrap_or(u64::MAX));
    let form = ProgressStyle::with_template("{bar:30} {pos}/{len} {wide_msg}");
    bar.set_style(form.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

impl Progress for Bar {
    fn begin(&self, gpu: &str, action: &Action) {
        self.bar.set_message(format!("{gpu}: {action}"));
    }

    fn end(&self, _action: &Action) {
        self.bar.inc(1);
    }

    fn note(&self, what: &str) {
        self.bar.suspend(|| note(what));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A progress bar over steps that have words of their own.
#[derive(Debug)]
pub struct Steps {
    bar: ProgressBar,
}

impl Steps {
    pub fn new(steps: usize) -> Self {
        Self { bar: bar(steps) }
    }

    /// Shows the step that begins.
    pub fn begin(&self, step: &str) {
        self.bar.set_message(step.to_owned());
    }

    pub fn end(&self) {
        self.bar.inc(1);
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
