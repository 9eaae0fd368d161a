use std::time::Instant;

use schemars::JsonSchema;
use serde::Serialize;

use super::super::json::{VERSION, Version, line};
use super::super::output::say;
use super::Running;
use crate::apply::{Progress, StepOf};
use crate::plan::GpuPlan;

/// A line of what `--progress json` prints to standard error while a change is made: one object for each event.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "progress")]
pub struct ProgressDocument<'a> {
    version: Version,
    event: Event,
    /// The index of the GPU; null for one that cannot be seen, and with a note.
    gpu: Option<u32>,
    /// The UUID of the GPU; null with a note.
    uuid: Option<&'a str>,
    /// The number of the step on its GPU, from 1; null where the event is of no step.
    step: Option<usize>,
    /// The number of steps on the GPU; null with a note.
    step_count: Option<usize>,
    /// The step in words; the processes that are waited for; the note.
    text: String,
    /// The seconds that the step took; null unless it has ended.
    took_seconds: Option<f64>,
}

/// The kind of an event.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "event")]
enum Event {
    /// A step begins.
    Begin,
    /// A step waits for others.
    Wait,
    /// A step is done.
    Done,
    /// A step failed or was interrupted.
    Failed,
    /// The changes made to the GPU are being undone.
    Undo,
    /// Something else to know.
    Note,
}

impl<'a> ProgressDocument<'a> {
    fn of(event: Event, step: StepOf<'a>) -> Self {
        Self {
            step: Some(step.number + 1),
            ..Self::of_gpu(event, step.gpu, step.action().to_string())
        }
    }

    fn of_gpu(event: Event, gpu: &'a GpuPlan, text: String) -> Self {
        Self {
            version: VERSION,
            event,
            gpu: gpu.index,
            uuid: Some(&gpu.uuid),
            step: None,
            step_count: Some(gpu.steps.len()),
            text,
            took_seconds: None,
        }
    }

    fn print(&self) {
        // An object of numbers and text can always be written.
        if let Ok(line) = line(self) {
            say(line.trim_end());
        }
    }
}

/// A JSON object for each event.
#[derive(Debug, Default)]
pub(super) struct Json {
    running: Running,
}

impl Progress for Json {
    fn begin(&self, step: StepOf<'_>) {
        self.running.begin(step);
        ProgressDocument::of(Event::Begin, step).print();
    }

    fn waits(&self, step: StepOf<'_>, others: &str) {
        if self.running.waits(step, others) {
            let document = ProgressDocument {
                text: others.to_owned(),
                ..ProgressDocument::of(Event::Wait, step)
            };
            document.print();
        }
    }

    fn end(&self, step: StepOf<'_>, is_done: bool) {
        let begun: Instant = self.running.end(step);
        let event = if is_done { Event::Done } else { Event::Failed };
        let document = ProgressDocument {
            took_seconds: Some(begun.elapsed().as_secs_f64()),
            ..ProgressDocument::of(event, step)
        };
        document.print();
    }

    fn undoes(&self, gpu: &GpuPlan) {
        let text = "undoing what was done".to_owned();
        ProgressDocument::of_gpu(Event::Undo, gpu, text).print();
    }

    fn note(&self, what: &str) {
        let document = ProgressDocument {
            version: VERSION,
            event: Event::Note,
            gpu: None,
            uuid: None,
            step: None,
            step_count: None,
            text: what.to_owned(),
            took_seconds: None,
        };
        document.print();
    }
}
