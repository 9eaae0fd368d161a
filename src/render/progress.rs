//! The progress of a change: a line for each GPU on a terminal, a line for each event elsewhere.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::format::{escaped, time_taken};
use super::output::{is_dumb, is_watched, note};
use crate::apply::{Progress, StepOf};
use crate::plan::{GpuPlan, Plan};

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

/// The steps that run, by their GPU's UUID and their number.
#[derive(Debug, Default)]
struct Running {
    steps: Mutex<BTreeMap<(String, usize), RunningStep>>,
}

#[derive(Debug)]
struct RunningStep {
    action: String,
    begun: Instant,
    /// The processes that it waits for.
    others: Option<String>,
}

impl Running {
    fn begin(&self, step: StepOf<'_>) {
        let running = RunningStep {
            action: step.action().to_string(),
            begun: Instant::now(),
            others: None,
        };
        self.with(|steps| steps.insert(key(step), running));
    }

    /// Returns true if it did not wait for the same before.
    fn waits(&self, step: StepOf<'_>, others: &str) -> bool {
        self.with(|steps| {
            let Some(running) = steps.get_mut(&key(step)) else {
                return false;
            };
            let is_new = running.others.as_deref() != Some(others);
            running.others = Some(others.to_owned());
            is_new
        })
    }

    /// Returns the time that the step took.
    fn end(&self, step: StepOf<'_>) -> Duration {
        let ended = self.with(|steps| steps.remove(&key(step)));
        ended.map_or(Duration::ZERO, |running| running.begun.elapsed())
    }

    /// Describes the step of a GPU that runs for the longest time:
    /// `start the daemon of 0.3 and 2 more  1.2 s, waits for pid 4711 (alice, python train.py)`
    fn longest(&self, uuid: &str) -> String {
        self.with(|steps| {
            let on_gpu = || steps.iter().filter(|((gpu, _), _)| gpu == uuid);
            let Some((_, longest)) = on_gpu().min_by_key(|(_, running)| running.begun) else {
                return String::new();
            };
            let more = match on_gpu().count() {
                1 => String::new(),
                several => format!(" and {} more", several - 1),
            };
            let took = longest.begun.elapsed().as_secs_f64();
            let others = longest
                .others
                .as_ref()
                .map(|others| format!(", waits for {}", escaped(others)));
            let action = &longest.action;
            format!("{action}{more}  {took:.1} s{}", others.unwrap_or_default())
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<(String, usize), RunningStep>) -> T) -> T {
        work(&mut self.steps.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn key(step: StepOf<'_>) -> (String, usize) {
    (step.gpu.uuid.clone(), step.number)
}

/// A line for each event.
#[derive(Debug, Default)]
struct Plain {
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
        let took = time_taken(self.running.end(step));
        // The error that follows says what failed.
        if is_done {
            let (gpu, action) = (step.gpu.name(), step.action());
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

/// The interval between two drawings. A change that takes less time draws nothing.
const INTERVAL: Duration = Duration::from_millis(150);

/// Lines on a terminal, one for each GPU, that change while the plan is run.
struct Bars {
    running: Arc<Running>,
    /// The line of each GPU, with the GPU's UUID.
    gpus: Vec<(String, ProgressBar)>,
    drawn: MultiProgress,
    /// The thread that draws, and the sender whose end ends it. Without a thread nothing is drawn.
    drawing: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Bars {
    fn new(plan: &Plan) -> Self {
        let running = Arc::new(Running::default());
        let drawn = MultiProgress::with_draw_target(ProgressDrawTarget::hidden());
        let gpus: Vec<(String, ProgressBar)> = plan
            .gpus
            .iter()
            .filter(|gpu| !gpu.steps.is_empty())
            .map(|gpu| (gpu.uuid.clone(), drawn.add(bar(gpu))))
            .collect();
        let (sender, ended) = channel();
        let theirs = (Arc::clone(&running), gpus.clone(), drawn.clone());
        let thread = Builder::new()
            .name("progress".to_owned())
            .spawn(move || draw(&theirs.0, &theirs.1, &theirs.2, &ended));
        Self {
            running,
            gpus,
            drawn,
            drawing: thread.ok().map(|thread| (sender, thread)),
        }
    }

    fn bar_of(&self, gpu: &GpuPlan) -> Option<&ProgressBar> {
        let (_, bar) = self.gpus.iter().find(|(uuid, _)| *uuid == gpu.uuid)?;
        Some(bar)
    }
}

/// `GPU 0   5/14  start the daemon of 0.3  1.2 s`
fn bar(gpu: &GpuPlan) -> ProgressBar {
    let steps = gpu.steps.len();
    let width = steps.to_string().len();
    let form = format!("{{prefix}}  {{pos:>{width}}}/{{len}}  {{wide_msg}}");
    let style =
        ProgressStyle::with_template(&form).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(steps as u64)
        .with_style(style)
        .with_prefix(gpu.name())
}

/// Draws the lines until the sender is gone.
fn draw(
    running: &Running,
    bars: &[(String, ProgressBar)],
    drawn: &MultiProgress,
    ended: &Receiver<()>,
) {
    let mut is_first = true;
    while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        if std::mem::take(&mut is_first) {
            drawn.set_draw_target(ProgressDrawTarget::stderr());
        }
        for (uuid, bar) in bars {
            if bar.is_finished() {
                bar.tick();
            } else {
                bar.set_message(running.longest(uuid));
            }
        }
    }
}

impl Progress for Bars {
    fn begin(&self, step: StepOf<'_>) {
        self.running.begin(step);
    }

    fn waits(&self, step: StepOf<'_>, others: &str) {
        self.running.waits(step, others);
    }

    fn end(&self, step: StepOf<'_>, is_done: bool) {
        self.running.end(step);
        let Some(bar) = self.bar_of(step.gpu).filter(|_| is_done) else {
            return;
        };
        bar.inc(1);
        if bar.length() == Some(bar.position()) {
            bar.finish_with_message(format!("done in {}", time_taken(bar.elapsed())));
        }
    }

    fn undoes(&self, gpu: &GpuPlan) {
        if let Some(bar) = self.bar_of(gpu) {
            bar.abandon_with_message("undoing what was done");
        }
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
        for (_, bar) in &self.gpus {
            bar.finish_and_clear();
        }
    }
}
