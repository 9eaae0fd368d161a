//! The progress of a change: a line for each GPU on a terminal, a line for each event elsewhere.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::format::{escape_text, format_time_taken};
use super::output::{is_dumb, is_watched, report};
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
pub fn start_progress(plan: &Plan, form: ProgressForm) -> Box<dyn Progress> {
    let is_drawn = form == ProgressForm::Auto && is_watched() && !is_dumb();
    let mut shown = PlanProgress {
        is_plain: form != ProgressForm::None && !is_drawn,
        running: Arc::default(),
        gpus: BTreeMap::new(),
        drawn: MultiProgress::with_draw_target(ProgressDrawTarget::hidden()),
        drawing: None,
    };
    if is_drawn {
        shown.begin_drawing(plan);
    }
    Box::new(shown)
}

/// The steps that run, by their GPU's UUID and their number.
#[derive(Debug, Default)]
struct RunningSteps {
    steps: Mutex<BTreeMap<(String, usize), RunningStep>>,
}

#[derive(Debug)]
struct RunningStep {
    action: String,
    begun: Instant,
    /// The processes that it waits for.
    others: Option<String>,
}

impl RunningSteps {
    /// Describes the step of a GPU that runs for the longest time:
    /// `start the daemon of 0.3 and 2 more  1.2 s, waiting for pid 4711 (alice, python train.py)`
    fn describe_longest(&self, uuid: &str) -> String {
        self.with_steps(|steps| {
            let on_gpu: Vec<&RunningStep> = steps
                .iter()
                .filter(|((gpu, _), _)| gpu == uuid)
                .map(|(_, running)| running)
                .collect();
            let Some(longest) = on_gpu.iter().min_by_key(|running| running.begun) else {
                return String::new();
            };
            let more = match on_gpu.len() {
                1 => String::new(),
                several => format!(" and {} more", several - 1),
            };
            let took = longest.begun.elapsed().as_secs_f64();
            let others = longest
                .others
                .as_ref()
                .map(|others| format!(", waits for {}", escape_text(others)));
            let action = &longest.action;
            format!("{action}{more}  {took:.1} s{}", others.unwrap_or_default())
        })
    }

    fn with_steps<T>(
        &self,
        work: impl FnOnce(&mut BTreeMap<(String, usize), RunningStep>) -> T,
    ) -> T {
        work(&mut self.steps.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn step_key(step: StepOf<'_>) -> (String, usize) {
    (step.gpu.uuid.clone(), step.number)
}

/// The interval between two drawings. A change that takes less time draws nothing.
const DRAW_INTERVAL: Duration = Duration::from_millis(150);

/// The progress of a plan: a line for each event, a line on the terminal for each GPU that changes while the plan is run,
/// or notes alone.
struct PlanProgress {
    /// True if each event is a line of its own.
    is_plain: bool,
    running: Arc<RunningSteps>,
    /// The line of each GPU that is drawn, with the GPU's UUID.
    gpus: BTreeMap<String, ProgressBar>,
    drawn: MultiProgress,
    /// The thread that draws, and the sender whose end ends it. Without a thread nothing is drawn.
    drawing: Option<(Sender<()>, JoinHandle<()>)>,
}

impl PlanProgress {
    /// Starts the thread that draws a line for each GPU with steps.
    fn begin_drawing(&mut self, plan: &Plan) {
        for gpu in plan.gpus.iter().filter(|gpu| !gpu.steps.is_empty()) {
            self.gpus
                .insert(gpu.uuid.clone(), self.drawn.add(progress_bar(gpu)));
        }
        let (sender, ended) = channel();
        let theirs = (
            Arc::clone(&self.running),
            self.gpus.clone(),
            self.drawn.clone(),
        );
        let thread = Builder::new()
            .name("progress".to_owned())
            .spawn(move || draw_progress(&theirs.0, &theirs.1, &theirs.2, &ended));
        self.drawing = thread.ok().map(|thread| (sender, thread));
    }
}

/// `GPU 0   5/14  start the daemon of 0.3  1.2 s`
fn progress_bar(gpu: &GpuPlan) -> ProgressBar {
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
fn draw_progress(
    running: &RunningSteps,
    bars: &BTreeMap<String, ProgressBar>,
    drawn: &MultiProgress,
    ended: &Receiver<()>,
) {
    let mut is_first = true;
    while ended.recv_timeout(DRAW_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        if std::mem::take(&mut is_first) {
            drawn.set_draw_target(ProgressDrawTarget::stderr());
        }
        for (uuid, bar) in bars {
            if bar.is_finished() {
                bar.tick();
            } else {
                bar.set_message(running.describe_longest(uuid));
            }
        }
    }
}

impl Progress for PlanProgress {
    fn begin(&self, step: StepOf<'_>) {
        let running = RunningStep {
            action: step.action().to_string(),
            begun: Instant::now(),
            others: None,
        };
        self.running
            .with_steps(|steps| steps.insert(step_key(step), running));
    }

    fn waits(&self, step: StepOf<'_>, others: &str) {
        let is_new = self.running.with_steps(|steps| {
            let before = steps
                .get_mut(&step_key(step))?
                .others
                .replace(others.to_owned());
            Some(before.as_deref() != Some(others))
        });
        if is_new == Some(true) && self.is_plain {
            let (gpu, action) = (step.gpu.name(), step.action());
            report(&format!("{gpu}: {action}: waiting for {others}"));
        }
    }

    fn end(&self, step: StepOf<'_>, is_done: bool) {
        let ended = self
            .running
            .with_steps(|steps| steps.remove(&step_key(step)));
        // The error that follows says what failed.
        if !is_done {
            return;
        }
        if self.is_plain {
            let (gpu, action) = (step.gpu.name(), step.action());
            let took = ended.map_or(Duration::ZERO, |running| running.begun.elapsed());
            report(&format!("{gpu}: {action} ({})", format_time_taken(took)));
        }
        let Some(bar) = self.gpus.get(&step.gpu.uuid) else {
            return;
        };
        bar.inc(1);
        if bar.length() == Some(bar.position()) {
            bar.finish_with_message(format!("done in {}", format_time_taken(bar.elapsed())));
        }
    }

    fn undoes(&self, gpu: &GpuPlan) {
        if self.is_plain {
            report(&format!("{}: undoing the changes", gpu.name()));
        }
        if let Some(bar) = self.gpus.get(&gpu.uuid) {
            bar.abandon_with_message("undoing the changes");
        }
    }

    fn note(&self, what: &str) {
        self.drawn.suspend(|| report(what));
    }
}

impl Drop for PlanProgress {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.drawing.take() {
            drop(sender);
            let _ = thread.join();
        }
        for bar in self.gpus.values() {
            bar.finish_and_clear();
        }
    }
}
