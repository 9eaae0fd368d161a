//! Progress on a terminal: a line for each GPU.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use console::Term;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::super::format::{escaped, time_taken, wrapped};
use super::super::output::note;
use crate::apply::{Progress, StepOf};
use crate::plan::{GpuPlan, Plan};

/// The interval between two drawings. A change that takes less time draws nothing.
const INTERVAL: Duration = Duration::from_millis(150);

/// Lines on a terminal, one for each GPU, that change while the plan is run.
pub(super) struct Bars {
    lines: Arc<Mutex<Vec<(String, GpuLine)>>>,
    drawn: MultiProgress,
    /// The thread that draws, and the sender whose end ends it. Without a thread nothing is drawn.
    drawing: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Bars {
    pub(super) fn new(plan: &Plan) -> Self {
        let now = Instant::now();
        let lines = plan
            .gpus
            .iter()
            .filter(|gpu| !gpu.steps.is_empty())
            .map(|gpu| (gpu.uuid.clone(), GpuLine::new(gpu, now)))
            .collect();
        let lines = Arc::new(Mutex::new(lines));
        let drawn = MultiProgress::new();
        let (sender, ended) = channel();
        let theirs = (Arc::clone(&lines), drawn.clone());
        let thread = Builder::new()
            .name("progress".to_owned())
            .spawn(move || draw(&theirs.0, &theirs.1, &ended));
        Self {
            lines,
            drawn,
            drawing: thread.ok().map(|thread| (sender, thread)),
        }
    }

    fn with(&self, gpu: &GpuPlan, change: impl FnOnce(&mut GpuLine)) {
        let mut lines = lock(&self.lines);
        if let Some((_, line)) = lines.iter_mut().find(|(uuid, _)| *uuid == gpu.uuid) {
            change(line);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Draws until the sender is gone. Where there are more GPUs than lines, those that are busy come first.
fn draw(lines: &Mutex<Vec<(String, GpuLine)>>, drawn: &MultiProgress, ended: &Receiver<()>) {
    let form =
        ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
    let mut bars: Vec<ProgressBar> = Vec::new();
    while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let (rows, columns) = Term::stderr().size();
        let now = Instant::now();
        let texts: Vec<String> = {
            let lines = lock(lines);
            let mut shown: Vec<&GpuLine> = lines.iter().map(|(_, line)| line).collect();
            let room = usize::from(rows).saturating_sub(1);
            if shown.len() > room {
                shown.sort_by_key(|line| !line.is_busy());
                shown.truncate(room);
            }
            shown
                .iter()
                .map(|line| line.text(now, columns.into()))
                .collect()
        };
        while bars.len() < texts.len() {
            bars.push(drawn.add(ProgressBar::new_spinner().with_style(form.clone())));
        }
        for (bar, text) in bars.iter().zip(texts) {
            bar.set_message(text);
        }
    }
    for bar in bars {
        bar.finish_and_clear();
    }
}

impl Progress for Bars {
    fn begin(&self, step: StepOf<'_>) {
        self.with(step.gpu, |line| line.begin(step, Instant::now()));
    }

    fn waits(&self, step: StepOf<'_>, others: &str) {
        self.with(step.gpu, |line| line.waits(step, others));
    }

    fn end(&self, step: StepOf<'_>, is_done: bool) {
        self.with(step.gpu, |line| line.end(step, is_done, Instant::now()));
    }

    fn undoes(&self, gpu: &GpuPlan) {
        self.with(gpu, GpuLine::undoes);
    }

    fn note(&self, what: &str) {
        self.drawn.suspend(|| note(what));
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.drawing.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

/// The run on one GPU so far, for a line on a terminal.
#[derive(Debug)]
pub(super) struct GpuLine {
    name: String,
    steps: usize,
    done: usize,
    begun: Instant,
    running: BTreeMap<usize, RunningGpu>,
    /// The time that all steps took, once they are over.
    took: Option<Duration>,
    undoes: bool,
}

#[derive(Debug)]
struct RunningGpu {
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
        let running = RunningGpu {
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
        let RunningGpu {
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
