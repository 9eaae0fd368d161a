//! Carries a plan out: GPUs side by side, the steps of one GPU in order.
//!
//! What a run has done is remembered, and undone when a later step fails, so that a failed `up`
//! leaves the node as it found it. Where the driver refuses even that, the report says what stands.

mod daemons;
mod done;
mod error;
mod gpu;
mod ledger;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::environment::{Environment, Home, MpsPrograms};
use crate::node::{NodeFile, RunDir, Served};
use crate::nvml::Nvml;
use crate::plan::{Action, Plan};

use done::Done;
use gpu::GpuRun;
use ledger::Ledger;

pub use error::{ApplyError, Cause};

/// What a run needs of its surroundings.
pub struct Site<'a> {
    /// The environment.
    pub environment: &'a Environment,
    /// Where state and logs go.
    pub home: &'a Home,
    /// The programs that run MPS.
    pub programs: &'a MpsPrograms,
    /// The devices that are served before the run.
    pub served: &'a [Served],
    /// This boot's id.
    pub boot_id: &'a str,
    /// What the user has allowed beyond the plan.
    pub allowed: Allowed,
}

/// What a run may do to the machine where a step needs it, each allowed by a flag of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Reset a GPU whose MIG mode is pending.
    pub reset: bool,
    /// Stop the known monitoring units that hold a GPU, and start them again.
    pub stop_holders: bool,
}

/// Is told what happens, while it happens, from several threads.
pub trait Progress: Sync {
    /// A step of that GPU begins.
    fn begin(&self, gpu: u32, action: &Action);
    /// It is done.
    fn end(&self, gpu: u32, action: &Action);
}

/// What is done when a step fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Undo what the run has done so far.
    RollBack,
    /// Leave the GPU as it is and go on with the others.
    GoOn,
}

/// Carries a plan out. The caller holds the node's lock.
///
/// # Errors
/// [`ApplyError`], saying which step failed, what was undone and what stands.
pub fn run(
    plan: &Plan,
    site: &Site<'_>,
    progress: &dyn Progress,
    on_failure: OnFailure,
) -> Result<(), ApplyError> {
    let run_dir = RunDir::at(&site.home.run);
    let ledger = Ledger::open(&run_dir, site.boot_id).map_err(ApplyError::at_start)?;
    let nvml =
        Nvml::open(site.environment.nvml_library.as_deref()).map_err(ApplyError::at_start)?;
    let shared = Shared {
        site,
        run_dir,
        ledger,
        nvml,
        progress,
        stop_here: AtomicBool::new(false),
        // 8 daemons ended at once take 3.5 times as long as one after another.
        one_stop_at_a_time: Mutex::new(()),
        done: Mutex::new(Vec::new()),
        on_failure,
    };
    let failures: Vec<ApplyError> = std::thread::scope(|scope| {
        let runs: Vec<_> = plan
            .gpus
            .iter()
            .map(|gpu| {
                let shared = &shared;
                scope.spawn(move || GpuRun::new(shared, gpu).run())
            })
            .collect();
        runs.into_iter()
            .filter_map(|run| {
                run.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                    .err()
            })
            .collect()
    });
    let Some(mut error) = ApplyError::merge(failures) else {
        return Ok(());
    };
    if on_failure == OnFailure::RollBack {
        shared.roll_back(&mut error);
    }
    Err(error)
}

/// What the threads of one run share.
struct Shared<'a> {
    site: &'a Site<'a>,
    run_dir: RunDir,
    ledger: Ledger,
    nvml: Nvml,
    progress: &'a dyn Progress,
    stop_here: AtomicBool,
    one_stop_at_a_time: Mutex<()>,
    done: Mutex<Vec<Done>>,
    on_failure: OnFailure,
}

impl Shared<'_> {
    /// Remembers something that was done.
    fn did(&self, done: Done) {
        lock(&self.done).push(done);
    }

    /// Whether another GPU's failure makes going on pointless.
    fn is_over(&self) -> bool {
        self.stop_here.load(Ordering::Relaxed)
    }

    fn fail(&self) {
        if self.on_failure == OnFailure::RollBack {
            self.stop_here.store(true, Ordering::Relaxed);
        }
    }

    /// Undoes what was done, the latest first.
    fn roll_back(&self, error: &mut ApplyError) {
        let mut done = std::mem::take(&mut *lock(&self.done));
        while let Some(step) = done.pop() {
            match step.undo(self) {
                Ok(()) => error.undone.push(step.to_string()),
                Err(cause) => error.stands.push(format!("{step}: {cause}")),
            }
        }
    }
}

/// A lock whose holder panicked is as good as any: what it guards is valid between operations.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Says in `node.json` which profile was applied.
///
/// # Errors
/// The system's.
pub fn record_profile(
    run_dir: &RunDir,
    boot_id: &str,
    profile: Option<String>,
) -> std::io::Result<()> {
    let mut file = run_dir.node()?;
    if file.boot_id != boot_id {
        file = NodeFile::default();
    }
    boot_id.clone_into(&mut file.boot_id);
    file.profile = profile;
    run_dir.write_node(&file)
}
