//! The progress of a change: a line for each GPU on a terminal, a line for each event elsewhere.

mod bars;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use clap::ValueEnum;

use super::format::time_taken;
use super::output::{is_dumb, is_watched, note};
use crate::apply::{Progress, StepOf};
use crate::plan::{GpuPlan, Plan};

use bars::Bars;

/// The form of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProgressForm {
    /// Lines that change on a terminal, plain elsewhere
    Auto,
    /// A line for each step, with the time that it took
    Plain,
    /// None
    None,
}

/// Returns the receiver of the events of a plan's run.
pub fn progress(plan: &Plan, form: ProgressForm) -> Box<dyn Progress> {
    match form {
        ProgressForm::Auto if is_watched() && !is_dumb() => Box::new(Bars::new(plan)),
        ProgressForm::Auto | ProgressForm::Plain => Box::new(Plain::default()),
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

/// A step: its GPU's UUID and its number.
type Key = (String, usize);

fn key(step: StepOf<'_>) -> Key {
    (step.gpu.uuid.clone(), step.number)
}

/// The steps that run.
#[derive(Debug, Default)]
pub(super) struct Running {
    steps: Mutex<BTreeMap<Key, (Instant, Option<String>)>>,
}

impl Running {
    pub(super) fn begin(&self, step: StepOf<'_>) {
        self.with(|steps| steps.insert(key(step), (Instant::now(), None)));
    }

    /// Returns true if it did not wait for the same before.
    pub(super) fn waits(&self, step: StepOf<'_>, others: &str) -> bool {
        self.with(|steps| {
            let Some((_, before)) = steps.get_mut(&key(step)) else {
                return false;
            };
            let is_new = before.as_deref() != Some(others);
            *before = Some(others.to_owned());
            is_new
        })
    }

    /// Returns the time at which the step began.
    pub(super) fn end(&self, step: StepOf<'_>) -> Instant {
        let ended = self.with(|steps| steps.remove(&key(step)));
        ended.map_or_else(Instant::now, |(begun, _)| begun)
    }

    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<Key, (Instant, Option<String>)>) -> T) -> T {
        work(&mut self.steps.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A line for each event.
#[derive(Debug, Default)]
pub(super) struct Plain {
    running: Running,
}

impl Progress for Plain {
    fn begin(&self, step: StepOf<'_>) {
        self.running.begin(step);
    }

    fn waits(&self, step: StepOf<'_>, others: &str) {
        if self.running.waits(step, others) {
            let (gpu, action) = (step.gpu.name(), step.action());
            note(&format!("{gpu}: {action}: waits for {others}"));
        }
    }

    fn end(&self, step: StepOf<'_>, is_done: bool) {
        let begun = self.running.end(step);
        // The error that follows says what failed.
        if is_done {
            let (gpu, action) = (step.gpu.name(), step.action());
            let took = time_taken(begun.elapsed());
            note(&format!("{gpu}: {action} ({took})"));
        }
    }

    fn undoes(&self, gpu: &GpuPlan) {
        note(&format!("{}: undoing what was done", gpu.name()));
    }

    fn note(&self, what: &str) {
        note(what);
    }
}
