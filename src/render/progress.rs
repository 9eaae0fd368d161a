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
        let steps = u64::try_from(plan.steps().count()).unwrap_or(u64::MAX);
        let bar = ProgressBar::new(steps);
        let form = ProgressStyle::with_template("{bar:30} {pos}/{len} {wide_msg}");
        bar.set_style(form.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar }
    }
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
