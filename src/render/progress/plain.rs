use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::apply::{Progress, StepOf};
use crate::plan::GpuPlan;
use crate::render::format::time_taken;
use crate::render::note;

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
