use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use console::Term;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::gpu_line::GpuLine;
use crate::apply::{Progress, StepOf};
use crate::plan::{GpuPlan, Plan};
use crate::render::output::note;

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
        let changed = plan.gpus.iter().filter(|gpu| !gpu.steps.is_empty());
        let lines = changed.map(|gpu| (gpu.uuid.clone(), GpuLine::new(gpu, now)));
        let lines = Arc::new(Mutex::new(lines.collect()));
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
    let form = ProgressStyle::with_template("{msg}");
    let form = form.unwrap_or_else(|_| ProgressStyle::default_spinner());
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
            let texts = shown.iter().map(|line| line.text(now, columns.into()));
            texts.collect()
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
