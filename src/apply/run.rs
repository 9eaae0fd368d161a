//! Applies a plan: stops its daemons, then changes all GPUs in parallel; then the rollback if a step failed.

use std::sync::atomic::AtomicBool;

use super::cleanup::purge;
use super::error::{ApplyError, FailedStep};
use super::gpu::{GpuRun, stop_daemons};
use super::journal::{NodeRecord, OpenJournal, record_profile};
use super::kill::kill;
use super::mig_mode::held;
use super::shared::{ApplyContext, OnFailure, Progress, Shared};
use crate::host::{ChangeInProgress, Threads};
use crate::nvml::Nvml;
use crate::plan::Plan;
use crate::state::RunDir;

/// Applies a plan. The caller holds the node's lock.
///
/// # Errors
/// Names the failed steps, what was undone, what is left over and what is missing.
pub fn run(
    plan: &Plan,
    context: &ApplyContext<'_>,
    progress: &dyn Progress,
    on_failure: OnFailure,
) -> Result<(), ApplyError> {
    if let Some(clients) = &plan.kill {
        return kill(clients, context, progress);
    }
    let change = context.environment.interrupt.begin();
    let run_dir = RunDir::at(&context.directories.run);
    let node_record =
        NodeRecord::open(&run_dir, &context.node.boot_id).map_err(ApplyError::at_start)?;
    let environment = context.environment;
    let nvml = if context.node.has_no_driver() {
        None
    } else {
        let nvml = Nvml::open(environment.nvml_library.as_deref()).map_err(ApplyError::at_start)?;
        Some(nvml.within(environment.call_limit))
    };
    Nvml::reserve(2).map_err(ApplyError::at_start)?;
    let (host, boot_id) = (&environment.host, &context.node.boot_id);
    // What only ends or heals begins on a full disk: often nothing else frees it.
    let may_lack = on_failure == OnFailure::GoOn;
    let journal =
        OpenJournal::begin(&run_dir, host, boot_id, may_lack).map_err(ApplyError::at_start)?;
    let shared = Shared {
        context,
        run_dir,
        node_record,
        journal,
        nvml,
        progress,
        has_failed: AtomicBool::new(false),
        on_failure,
    };
    let most = threads_for(plan);
    // Each thread makes one call at a time, and one that hangs is lost.
    let calls = most + 1 + plan.gpus.len();
    // Each thread has one child at a time; each start leaves a daemon and a server.
    let others = calls + most + 1 + 2 * plan.starts().count();
    let threads = Threads::beside(most, others);
    if !threads.are_none() && Nvml::reserve(calls).is_err() {
        threads.close();
    }
    let result = carry_out(plan, &shared, &change, &threads);
    shared.run_dir.keep_reserve();
    result
}

/// The number of threads that a plan keeps busy beside the caller's. More gain nothing: the driver makes one server
/// after another.
fn threads_for(plan: &Plan) -> usize {
    const MOST: usize = 64;
    let daemons = plan.starts().count().max(plan.stops().count());
    (plan.gpus.len() + daemons).saturating_sub(1).min(MOST)
}

/// Runs the steps of each GPU.
fn run_steps<'a>(plan: &'a Plan, shared: &'a Shared<'a>, threads: &Threads) -> Vec<GpuRun<'a>> {
    // The driver may refuse the MIG mode of a GPU that others have open: all else is touched after that.
    let context = shared.context;
    let held = held(context.environment, context.node, plan, context.allowed);
    let (mut first, mut rest): (Vec<_>, Vec<_>) = plan
        .gpus
        .iter()
        .map(|gpu| GpuRun::new(shared, gpu))
        .partition(|run| held.iter().any(|held| held.uuids.contains(&run.plan.uuid)));
    stop_daemons(&first, threads);
    first = threads.side_by_side(first, |mut run| {
        run.run_to_mig_mode(threads);
        run
    });
    stop_daemons(&rest, threads);
    first.append(&mut rest);
    threads.side_by_side(first, |mut run| {
        run.run_to_end(threads);
        run
    })
}

fn carry_out(
    plan: &Plan,
    shared: &Shared<'_>,
    change: &ChangeInProgress<'_>,
    threads: &Threads,
) -> Result<(), ApplyError> {
    let runs = run_steps(plan, shared, threads);
    let environment = shared.context.environment;
    let mut error = ApplyError {
        failures: runs
            .iter()
            .flat_map(|run| run.history.take_failures())
            .collect(),
        interrupted: environment.interrupt.is_asked(),
        ..ApplyError::default()
    };
    let is_to_be_undone = error.interrupted || !error.failures.is_empty();
    match shared.on_failure {
        OnFailure::RollBack if is_to_be_undone => {
            change.roll_back();
            // It may need the room.
            shared.run_dir.give_up_reserve();
            roll_back(runs, &mut error, threads);
        }
        OnFailure::RollBack => {}
        OnFailure::GoOn => {
            error
                .not_begun
                .extend(runs.iter().flat_map(GpuRun::not_begun));
            error.interrupted &= !error.not_begun.is_empty();
        }
    }
    let ledger = shared.node_record.write_rest();
    let is_done = !error.rolled_back.cut_short && ledger.is_ok();
    let ledger = ledger.err().map(|error| {
        FailedStep::new(
            "recording which instances are left".to_owned(),
            error.into(),
        )
    });
    error.failures.extend(ledger);
    error
        .failures
        .extend(shared.journal.end(environment, is_done));
    if error.interrupted || !error.failures.is_empty() {
        return Err(error);
    }
    error.failures.extend(finish(plan, shared));
    if error.failures.is_empty() {
        return Ok(());
    }
    Err(error)
}

/// Undoes what was done on each GPU, and adds the outcome to the error.
fn roll_back(runs: Vec<GpuRun<'_>>, error: &mut ApplyError, threads: &Threads) {
    if error
        .failures
        .iter()
        .any(|failure| failure.cause.lacks_processes())
    {
        // The rollback starts programs too.
        threads.close();
    }
    // Idle daemons stop one after another, on all GPUs.
    let begun = runs
        .into_iter()
        .map(|mut run| {
            let rolled_back = run.stop_started();
            (run, rolled_back)
        })
        .collect();
    let undone = threads.side_by_side(begun, |(run, rolled_back)| {
        run.roll_back(rolled_back, threads)
    });
    for undone in undone {
        error.add(undone);
    }
}

/// Does what follows the last step: without devices no profile is applied, and a purge removes files.
fn finish(plan: &Plan, shared: &Shared<'_>) -> Vec<FailedStep> {
    let run_dir = &shared.run_dir;
    let mut failures = Vec::new();
    if run_dir.records().0.is_empty()
        && let Err(error) = record_profile(run_dir, &shared.context.node.boot_id, None)
    {
        failures.push(FailedStep::new(
            "closing the record".to_owned(),
            error.into(),
        ));
    }
    if let Some(purged) = &plan.purge {
        failures.extend(purge(purged, shared.context, run_dir));
    }
    failures
}
