use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::apply::StepOf;
use crate::plan::GpuPlan;
use crate::render::format::{escaped, time_taken, wrapped};

/// The run on one GPU so far, for a line on a terminal.
#[derive(Debug)]
pub(super) struct GpuLine {
    name: String,
    steps: usize,
    done: usize,
    begun: Instant,
    running: BTreeMap<usize, Running>,
    /// The time that all steps took, once they are over.
    took: Option<Duration>,
    undoes: bool,
}

#[derive(Debug)]
struct Running {
    action: String,
    begun: Instant,
    others: Option<String>,
}

impl GpuLine {
    pub(super) fn new(gpu: &GpuPlan, now: Instant) -> Self {
        Self {
            name: gpu.name(),
            steps: gpu.steps.len(),
            done: 0,
            begun: now,
            running: BTreeMap::new(),
            took: None,
            undoes: false,
        }
    }

    pub(super) fn begin(&mut self, step: StepOf<'_>, now: Instant) {
        let running = Running {
            action: step.action().to_string(),
            begun: now,
            others: None,
        };
        self.running.insert(step.number, running);
    }

    pub(super) fn waits(&mut self, step: StepOf<'_>, others: &str) {
        if let Some(running) = self.running.get_mut(&step.number) {
            running.others = Some(escaped(others).into_owned());
        }
    }

    pub(super) fn end(&mut self, step: StepOf<'_>, is_done: bool, now: Instant) {
        self.running.remove(&step.number);
        self.done += usize::from(is_done);
        if self.done == self.steps {
            self.took = Some(now - self.begun);
        }
    }

    pub(super) fn undoes(&mut self) {
        self.undoes = true;
    }

    /// True while there is something left to do.
    pub(super) fn is_busy(&self) -> bool {
        self.took.is_none() || self.undoes
    }

    /// `GPU 0   5/14  start the daemon of 0.3 and 2 more  1.2 s, waits for pid 4711 (alice, python train.py)`
    pub(super) fn text(&self, now: Instant, room: usize) -> String {
        let width = self.steps.to_string().len();
        let head = format!("{}  {:>width$}/{}  ", self.name, self.done, self.steps);
        let rest = match (self.undoes, self.took) {
            (true, _) => "undoing what was done".to_owned(),
            (false, Some(took)) => format!("done in {}", time_taken(took)),
            (false, None) => self.doing(now),
        };
        let text = head + &rest;
        let mut lines = wrapped(&text, room.saturating_sub(2)).into_iter();
        let first = lines.next().unwrap_or_default();
        match lines.next() {
            Some(_) => first + " …",
            None => first,
        }
    }

    /// The step that runs for the longest time.
    fn doing(&self, now: Instant) -> String {
        let Some(longest) = self.running.values().min_by_key(|running| running.begun) else {
            return String::new();
        };
        let more = match self.running.len() {
            1 => String::new(),
            several => format!(" and {} more", several - 1),
        };
        let Running {
            action,
            begun,
            others,
        } = longest;
        let took = (now - *begun).as_secs_f64();
        let others = others
            .as_ref()
            .map(|others| format!(", waits for {others}"));
        format!("{action}{more}  {took:.1} s{}", others.unwrap_or_default())
    }
}
