//! Carries a plan out: GPUs side by side, the steps of one GPU in order.
//!
//! What a run has done is remembered, and undone when a later step fails or the user interrupts it,
//! so that a failed `up` leaves the node as it found it, with what it had destroyed made again. Where
//! the driver refuses even that, the report says what stands and what is missing. A journal in the
//! run directory tells the next run of one that was killed.

mod again;
mod cause;
mod compute_mode;
mod daemons;
mod done;
mod error;
mod gpu;
mod holders;
mod instances;
mod journal;
mod kill;
mod ledger;
mod logs;
mod mode;
mod names;
mod retry;
mod server;
mod set;
mod standing;
mod undo;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::host::{Change, Pool};
use crate::host::{Environment, Home, MpsPrograms};
use crate::node::Node;
use crate::nvml::Nvml;
use crate::plan::{Action, Plan, Step};
use crate::state::{NodeFile, RunDir};

use gpu::GpuRun;
use journal::OpenJournal;
use ledger::Ledger;
use names::Leaving;
use undo::Outcomes;

pub use cause::{Cause, Due};
pub use error::{ApplyError, Failure};
pub use journal::{pick_up, read as read_journal};
pub use kill::{Ended, kill};
pub use logs::{has_large_logs, put_logs_aside};
pub use undo::RolledBack;

/// What a run needs of its surroundings.
pub struct Site<'a> {
    /// The environment.
    pub environment: &'a Environment,
    /// Where state and logs go.
    pub home: &'a Home,
    /// The programs that run MPS.
    pub programs: &'a MpsPrograms,
    /// The node as the plan was made for it, under the lock.
    pub node: &'a Node,
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
    /// Something else that the user should know.
    fn note(&self, what: &str);
}

/// What is done when a step fails, or the user interrupts the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Undo what the run has done so far, unless only daemons of other users than the caller have failed.
    RollBack,
    /// Leave the GPU as it is and go on with the others; when interrupted, stop.
    GoOn,
}

/// Carries a plan out. The caller holds the node's lock.
///
/// # Errors
/// [`ApplyError`], saying which step failed, what was undone, what stands and what is missing.
pub fn run(
    plan: &Plan,
    site: &Site<'_>,
    progress: &dyn Progress,
    on_failure: OnFailure,
) -> Result<(), ApplyError> {
    let interrupt = &site.environment.interrupt;
    let change = interrupt.begin();
    let run_dir = RunDir::at(&site.home.run);
    let ledger = Ledger::open(&run_dir, &site.node.boot_id).map_err(ApplyError::at_start)?;
    let nvml = Nvml::open(site.environment.nvml_library.as_deref())
        .map_err(ApplyError::at_start)?
        .within(site.environment.call_limit);
    Nvml::reserve(2).map_err(ApplyError::at_start)?;
    let journal = OpenJournal::begin(&run_dir, &site.environment.host, &site.node.boot_id)
        .map_err(ApplyError::at_start)?;
    let shared = Shared {
        site,
        run_dir,
        ledger,
        journal,
        nvml,
        progress,
        stop_here: AtomicBool::new(false),
        // 8 daemons ended at once take 3.5 times as long as one after another.
        one_stop_at_a_time: Mutex::new(()),
        leaving: Leaving::of(plan),
        on_failure,
    };
    let threads = threads_for(plan);
    // Each thread makes one call at a time, and one that hangs is lost.
    let calls = threads + 1 + plan.gpus.len();
    // Each thread has one child at a time; each start leaves a daemon and a server.
    let others = calls + threads + 1 + 2 * starts_of(plan);
    Pool::with(threads, others, |pool| {
        if pool.threads() > 0 && Nvml::reserve(calls).is_err() {
            pool.close();
        }
        carry_out(plan, &shared, &change, pool)
    })
}

fn starts_of(plan: &Plan) -> usize {
    let is_start = |step: &&Step| matches!(step.action, Action::Start(_));
    plan.steps().filter(is_start).count()
}

/// How many threads a plan keeps busy beside the caller's. More would gain nothing: the driver makes one
/// server after another.
fn threads_for(plan: &Plan) -> usize {
    const MOST: usize = 64;
    let daemons = starts_of(plan).max(plan.stops().count());
    (plan.gpus.len() + daemons).saturating_sub(1).min(MOST)
}

fn carry_out<'a>(
    plan: &'a Plan,
    shared: &'a Shared<'a>,
    change: &Change<'_>,
    pool: &Pool<'a>,
) -> Result<(), ApplyError> {
    let runs = plan.gpus.iter().map(|gpu| GpuRun::new(shared, gpu));
    let runs = pool.side_by_side(runs.collect(), |mut run, pool| {
        run.run(pool);
        run
    });
    let failures = runs.iter().flat_map(|run| run.history.take_failures());
    let environment = shared.site.environment;
    let mut error = ApplyError {
        failures: failures.collect(),
        interrupted: environment.interrupt.is_asked(),
        ..ApplyError::default()
    };
    let is_cause = |failure: &Failure| !failure.is_a_users;
    let is_to_be_undone = error.interrupted || error.failures.iter().any(is_cause);
    error.is_rest_done = !is_to_be_undone && plan.steps().count() > error.failures.len();
    match shared.on_failure {
        OnFailure::RollBack if is_to_be_undone => {
            change.roll_back();
            if error
                .failures
                .iter()
                .any(|failure| failure.cause.lacks_processes())
            {
                // What undoes the run starts programs too.
                pool.close();
            }
            let outcomes: Arc<Outcomes> = Arc::default();
            let theirs = Arc::clone(&outcomes);
            pool.side_by_side(
                runs.into_iter().enumerate().collect(),
                move |(place, run), pool| {
                    run.roll_back(place, &theirs, pool);
                },
            );
            for undone in std::mem::take(&mut *lock(&outcomes)).into_values() {
                error.add(undone);
            }
        }
        OnFailure::RollBack => {}
        OnFailure::GoOn => {
            error.left.extend(runs.iter().flat_map(GpuRun::left));
            error.interrupted &= !error.left.is_empty();
        }
    }
    let is_done = !error.rolled_back.cut_short;
    error
        .failures
        .extend(shared.journal.end(environment, is_done));
    if error.interrupted || !error.failures.is_empty() {
        return Err(error);
    }
    Ok(())
}

/// What the threads of one run share.
struct Shared<'a> {
    site: &'a Site<'a>,
    run_dir: RunDir,
    ledger: Ledger,
    journal: OpenJournal,
    nvml: Nvml,
    progress: &'a dyn Progress,
    stop_here: AtomicBool,
    one_stop_at_a_time: Mutex<()>,
    leaving: Leaving,
    on_failure: OnFailure,
}

impl Shared<'_> {
    /// Whether another GPU's failure, or the user, makes going on pointless.
    fn is_over(&self) -> bool {
        self.stop_here.load(Ordering::Relaxed) || self.site.environment.interrupt.is_asked()
    }

    fn fail(&self) {
        if self.on_failure == OnFailure::RollBack {
            self.stop_here.store(true, Ordering::Relaxed);
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
