//! Applies a plan: stops its daemons, then changes all GPUs in parallel; then the rollback if a step failed.

use std::sync::atomic::AtomicBool;

use super::cause::Cause;
use super::context::{ApplyContext, OnFailure, Progress, Run};
use super::error::{ApplyError, FailedStep};
use super::gpu::{GpuRun, stop_daemons};
use super::in_use::find_held_gpus;
use super::joint::JointGpus;
use super::journal::{NodeRecord, OpenJournal};
use super::kill::terminate_clients;
use super::purge::purge_files;
use crate::host::{ChangeInProgress, Threads, Unit};
use crate::mps::MpsProcesses;
use crate::nvml::Nvml;
use crate::plan::Plan;
use crate::state::RunDir;

/// Applies a plan. The caller holds the node's lock.
///
/// Returns the monitoring services that were stopped meanwhile, and run again.
///
/// # Errors
/// Names the failed steps, what was undone, what is left over and what is missing.
pub fn run(
    plan: &Plan,
    context: &ApplyContext<'_>,
    progress: &dyn Progress,
    on_failure: OnFailure,
) -> Result<Vec<Unit>, ApplyError> {
    if let Some(clients) = &plan.kill {
        return terminate_clients(clients, context, progress).map(|()| Vec::new());
    }
    let change = context.environment.interrupt.begin_change();
    let run_dir = RunDir::at(&context.directories.run);
    let node_record =
        NodeRecord::open(&run_dir, &context.node.boot_id).map_err(ApplyError::at_start)?;
    let environment = context.environment;
    let nvml = if context.node.has_no_driver() {
        None
    } else {
        let nvml = Nvml::open(environment.nvml_library.as_deref()).map_err(ApplyError::at_start)?;
        Some(nvml.with_call_limit(environment.call_limit))
    };
    Nvml::reserve_threads(2).map_err(ApplyError::at_start)?;
    // A run that only ends or heals daemons begins even on a full disk: often only such a run frees space.
    let may_lack = on_failure == OnFailure::GoOn;
    // The snapshot was taken under the lock, or found that none is needed.
    let mps_processes = match &context.node.mps_table {
        Some(table) => MpsProcesses::from_table(table),
        None => MpsProcesses::read(&environment.host).map_err(ApplyError::at_start)?,
    };
    let journal = OpenJournal::begin(context, &run_dir, may_lack).map_err(ApplyError::at_start)?;
    let run = Run {
        context,
        run_dir,
        node_record,
        journal,
        nvml,
        mps_processes,
        progress,
        has_failed: AtomicBool::new(false),
        on_failure,
    };
    let most = threads_for(plan);
    // Each thread makes one call at a time, and one that hangs is lost.
    let calls = most + 1 + plan.gpus.len();
    let threads = Threads::with_limit(most);
    if most > 0 && Nvml::reserve_threads(calls).is_err() {
        threads.close();
    }
    let result = carry_out(plan, &run, &change, &threads);
    // What cannot be removed is reported by doctor.
    let _ = run.run_dir.remove_mount_sources();
    run.run_dir.keep_reserve();
    result
}

/// The number of threads that a plan keeps busy beside the caller's. More gain nothing: the driver makes one server
/// after another.
fn threads_for(plan: &Plan) -> usize {
    const MAX_THREADS: usize = 64;
    let daemons = plan.starts().count().max(plan.stops().count());
    (plan.gpus.len() + daemons)
        .saturating_sub(1)
        .min(MAX_THREADS)
}

/// Runs the steps of each GPU.
fn run_steps<'a>(
    plan: &'a Plan,
    run: &'a Run<'a>,
    joint: &JointGpus,
    threads: &Threads,
) -> Vec<GpuRun<'a>> {
    // The driver may refuse the MIG mode of a GPU that others have open: all else is touched after that.
    let context = run.context;
    let (node, on_failure) = (context.node, run.on_failure);
    let held = find_held_gpus(context.environment, node, plan, context.allowed, on_failure);
    let (mut first, mut rest): (Vec<_>, Vec<_>) = plan
        .gpus
        .iter()
        .map(|gpu| GpuRun::new(run, gpu))
        .partition(|gpu_run| {
            held.iter()
                .any(|held| held.uuids.contains(&gpu_run.gpu.plan.uuid))
        });
    joint.follow(&mut first, &mut rest);
    stop_daemons(&first, threads);
    joint.hold_up_failed(&mut first);
    first = threads.map_in_parallel(first, |gpu_run| gpu_run.run_to_mig_mode(threads));
    stop_daemons(&rest, threads);
    joint.hold_up_failed(&mut rest);
    first.append(&mut rest);
    let mut runs = threads.map_in_parallel(first, |gpu_run| gpu_run.run_to_joint_daemon(threads));
    joint.hold_up_failed(&mut runs);
    threads.map_in_parallel(runs, |gpu_run| gpu_run.run_to_end(threads))
}

fn carry_out(
    plan: &Plan,
    run: &Run<'_>,
    change: &ChangeInProgress<'_>,
    threads: &Threads,
) -> Result<Vec<Unit>, ApplyError> {
    let joint = JointGpus::of_plan(plan, run);
    let runs = run_steps(plan, run, &joint, threads);
    let environment = run.context.environment;
    let interrupted = environment.interrupt.is_interrupted();
    let has_failed = runs.iter().any(|gpu_run| gpu_run.history.has_failed());
    let served: Vec<String> = joint.served_before(&runs);
    let (mut undone, mut kept): (Vec<_>, Vec<_>) =
        runs.into_iter().partition(|gpu_run| match run.on_failure {
            OnFailure::RollBack => interrupted || has_failed,
            OnFailure::LeaveOut => {
                let was_served = served.iter().any(|gpu| gpu == gpu_run.uuid());
                interrupted || gpu_run.is_to_be_undone(was_served)
            }
            OnFailure::GoOn => false,
        });
    joint.follow(&mut undone, &mut kept);
    let mut failures: Vec<FailedStep> = undone
        .iter()
        .chain(&kept)
        .flat_map(|gpu_run| gpu_run.history.take_failures())
        .collect();
    failures.extend(undo_namesakes(&mut undone, &mut kept));
    joint.follow(&mut undone, &mut kept);
    let mut error = ApplyError {
        failures,
        interrupted,
        ..ApplyError::default()
    };
    if run.on_failure == OnFailure::GoOn {
        error
            .not_begun
            .extend(kept.iter().flat_map(GpuRun::not_begun));
        error.interrupted &= !error.not_begun.is_empty();
    }
    if !undone.is_empty() {
        change.begin_rollback();
        // It may need the room.
        run.run_dir.give_up_reserve();
        roll_back(undone, &mut error, threads);
    }
    let ledger = run.node_record.write_rest();
    let is_done = !error.rolled_back.cut_short && ledger.is_ok();
    if let Err(cause) = ledger {
        let attempt = "cannot record which instances remain";
        error.failures.push(FailedStep::new(attempt, cause));
    }
    let restarted = run
        .journal
        .restart_units_and_close(environment, is_done, &mut error.failures);
    if !error.interrupted && error.failures.is_empty() {
        error
            .failures
            .extend(plan.purge.iter().flat_map(|purge| purge_files(run, purge)));
        if error.failures.is_empty() {
            return Ok(restarted);
        }
    }
    // The last line of a change that succeeded names them.
    for unit in restarted {
        run.progress.note(&format!("{unit} was started again"));
    }
    Err(error)
}

/// Undoes a GPU, too, if a device there has got the name of one that comes back elsewhere. Returns the reasons.
fn undo_namesakes<'a>(undone: &mut Vec<GpuRun<'a>>, kept: &mut Vec<GpuRun<'a>>) -> Vec<FailedStep> {
    let mut reasons = Vec::new();
    // What comes back there may have the name of a third.
    while let Some((position, name)) = find_namesake(undone, kept) {
        let gpu_run = kept.remove(position);
        let why = format!("a device of another GPU keeps the name {name}");
        reasons.push(FailedStep {
            gpu: gpu_run.gpu.plan.index,
            ..FailedStep::new(
                format!("{}: not changed", gpu_run.gpu.plan.title()),
                Cause::Other(why),
            )
        });
        undone.push(gpu_run);
    }
    reasons
}

/// Finds a GPU with such a device: its position in `kept`, and the name.
fn find_namesake(undone: &[GpuRun<'_>], kept: &[GpuRun<'_>]) -> Option<(usize, String)> {
    let is_back = |name: &str| undone.iter().any(|gpu_run| gpu_run.had_name(name));
    kept.iter().enumerate().find_map(|(position, gpu_run)| {
        let start = gpu_run
            .gpu
            .plan
            .steps
            .iter()
            .filter_map(|step| step.action.as_start())
            .find(|start| is_back(&start.name))?;
        Some((position, start.name.clone()))
    })
}

/// Undoes what was done on each GPU, and adds the outcome to the error.
fn roll_back(mut runs: Vec<GpuRun<'_>>, error: &mut ApplyError, threads: &Threads) {
    if error
        .failures
        .iter()
        .any(|failure| failure.cause.lacks_processes())
    {
        // The rollback starts programs too.
        threads.close();
    }
    // Idle daemons stop one after another, on all GPUs.
    runs.iter_mut().for_each(GpuRun::stop_started_daemons);
    let runs = threads.map_in_parallel(runs, |gpu_run| gpu_run.roll_back(threads));
    let in_mig_mode: Vec<String> = runs
        .iter()
        .filter(|gpu_run| gpu_run.gpu.mig)
        .map(|gpu_run| gpu_run.uuid().to_owned())
        .collect();
    for gpu_run in runs {
        error.add_rollback(gpu_run.start_joint_daemons_again(&in_mig_mode));
    }
}
