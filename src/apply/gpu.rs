//! The run on one GPU: its steps in order, with daemons in parallel. Daemons stop before, on all GPUs.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread::scope;

use jiff::Timestamp;

use super::cause::Cause;
use super::context::{Run, StepOf};
use super::daemons::{
    StopRequest, bring_up, end_stray, ensure_record, find_successor, is_alive, restore_record,
    set_daemon_settings, start_server, stop_daemon,
};
use super::error::FailedStep;
use super::gpu_state::{ChangingGpu, GpuState, History};
use super::instances::{
    create_compute_instance, create_gpu_instance, destroy_compute_instance, destroy_gpu_instance,
};
use super::mig_mode::switch_mig;
use crate::host::{Threads, lock};
use crate::mps::ClientPolicy;
use crate::plan::{Action, GpuPlan, Place, Start, StartedBy, Stop};
use crate::state::{DeviceKey, DeviceRecord, InstanceKey};

/// Runs the steps of one GPU in order. A daemon starts in the background as soon as its device exists,
/// while the next instance is made.
pub(super) struct GpuRun<'a> {
    pub(super) gpu: ChangingGpu<'a>,
    pub(super) before: GpuState,
    pub(super) history: History,
    /// The number of the next step.
    next: usize,
}

impl<'a> GpuRun<'a> {
    pub(super) fn new(run: &'a Run<'a>, plan: &'a GpuPlan) -> Self {
        let before = GpuState::before_run(run, plan);
        Self {
            gpu: ChangingGpu {
                run,
                plan,
                snapshot: run.context.node.gpu_with_uuid(&plan.uuid),
                mig: before.mig,
                instances: before.instances.clone(),
                unknown: BTreeMap::new(),
                rolling_back: false,
            },
            history: History {
                daemons: Mutex::new(before.daemons.clone()),
                ..History::default()
            },
            before,
            next: 0,
        }
    }

    /// The state now.
    pub(super) fn current_state(&self) -> GpuState {
        GpuState {
            mig: self.gpu.mig,
            instances: self.gpu.instances.clone(),
            daemons: lock(&self.history.daemons).clone(),
        }
    }

    /// Runs the steps up to the switch of the MIG mode. The daemons have stopped.
    pub(super) fn run_to_mig_mode(self, threads: &Threads) -> Self {
        let switch = self
            .gpu
            .plan
            .steps
            .iter()
            .position(|step| matches!(step.action, Action::SwitchMig { .. }));
        self.run_steps_until(switch.map_or(0, |number| number + 1), threads)
    }

    /// Runs the steps up to one with this number.
    pub(super) fn run_steps_until(mut self, end: usize, threads: &Threads) -> Self {
        if self.history.has_failed() {
            return self;
        }
        let (gpu, history) = (&mut self.gpu, &self.history);
        let (run, plan) = (gpu.run, gpu.plan);
        scope(|scope| {
            while self.next < end && !run.must_stop() {
                let attempt = Attempt::new(gpu, self.next, history);
                let action = &plan.steps[self.next].action;
                self.next += 1;
                match action {
                    Action::Stop(_) => {}
                    Action::Start(start) => {
                        let record = new_record(gpu, start);
                        threads.spawn_or_run(scope, move || {
                            attempt.run_step(|| {
                                let record = record.ok_or(Cause::NoDevice)?;
                                start_daemon(run, record, start, history)
                            });
                        });
                    }
                    action => {
                        let step = Some(attempt.step);
                        if !attempt.run_step(|| run_action(gpu, action, step, history)) {
                            return;
                        }
                    }
                }
            }
        });
        self
    }

    /// The daemons that stop.
    fn stop_attempts(&self) -> impl Iterator<Item = (Attempt<'_>, &'a Stop)> {
        let steps = self.gpu.plan.steps.iter().enumerate();
        steps.filter_map(|(number, step)| {
            let attempt = Attempt::new(&self.gpu, number, &self.history);
            Some((attempt, step.action.as_stop()?))
        })
    }

    /// The steps that did not begin.
    pub(super) fn not_begun(&self) -> Vec<String> {
        let ended = lock(&self.history.ended);
        let plan = self.gpu.plan;
        let steps = plan.steps.iter().enumerate();
        steps
            .filter(|(number, _)| !ended.contains_key(number))
            .map(|(_, step)| format!("{}: {}", plan.title(), step.action))
            .collect()
    }

    /// True if a step failed. A daemon that does not start is no reason where none ran before: going back would help nobody.
    pub(super) fn is_to_be_undone(&self) -> bool {
        let ended = lock(&self.history.ended);
        let mut actions = ended
            .iter()
            .filter(|(_, failure)| failure.is_some())
            .map(|(number, _)| &self.gpu.plan.steps[*number].action);
        if self.before.daemons.is_empty() {
            actions.any(|action| action.as_start().is_none())
        } else {
            actions.next().is_some()
        }
    }

    /// True if a daemon of a device with this name ran before.
    pub(super) fn had_name(&self, name: &str) -> bool {
        let mut before = self.before.daemons.values();
        before.any(|record| record.name == name)
    }
}

/// Runs an action that has a place among the others, as a step of the plan or of the rollback.
pub(super) fn run_action(
    gpu: &mut ChangingGpu<'_>,
    action: &Action,
    step: Option<StepOf<'_>>,
    history: &History,
) -> Result<(), Cause> {
    match action {
        Action::SwitchMig { on } => switch_mig(gpu, *on, step),
        Action::CreateGpuInstance(instance) => create_gpu_instance(gpu, instance),
        Action::CreateComputeInstance { instance, compute } => {
            create_compute_instance(gpu, *instance, *compute)
        }
        Action::DestroyComputeInstance {
            instance, compute, ..
        } => destroy_compute_instance(gpu, *instance, *compute),
        Action::DestroyGpuInstance { instance, .. } => destroy_gpu_instance(gpu, instance),
        Action::Set(set) => set_daemon_settings(gpu.run, set, history),
        Action::StartServer(server) => start_server(gpu.run, server),
        Action::EndStray(stray) => end_stray(gpu.run, stray),
        Action::Start(_) | Action::Stop(_) => Ok(()),
    }
}

/// The record of a daemon that is to start; `None` if its device does not exist.
fn new_record(gpu: &ChangingGpu<'_>, start: &Start) -> Option<DeviceRecord> {
    let mut record = DeviceRecord {
        name: start.name.clone(),
        key: DeviceKey::for_whole_gpu(&gpu.plan.uuid),
        uuid: gpu.plan.uuid.clone(),
        gpu: gpu.plan.index,
        profile: None,
        settings: start.settings.clone(),
        served_id: start.served_id,
        by_hand: start.by_hand.clone(),
        older_clients: Vec::new(),
        compute_mode_before: None,
        daemon: None,
        finished: false,
        boot_id: gpu.run.context.node.boot_id.clone(),
        machine: Some(gpu.run.context.environment.host.this_machine()),
        since: Timestamp::now(),
        restarts: 0,
        healed: Vec::new(),
        leaving: false,
    };
    if let Place::Mig { placement, nth } = start.place {
        let instance = gpu.instances.get(&placement)?;
        let compute = instance.compute.get(nth)?;
        record.key.instance = Some(InstanceKey {
            profile: instance.profile,
            placement,
            compute: compute.placement,
        });
        record.uuid.clone_from(&compute.uuid);
        record.profile = gpu
            .snapshot
            .map(|snapshot| snapshot.instance_title(instance, Some(compute)));
    }
    Some(record)
}

/// Stops the daemons of these GPUs: idle ones one after another, since 8 stopped at once take 3.5 times as long; the others
/// side by side, since each waits for its clients.
pub(super) fn stop_daemons(runs: &[GpuRun<'_>], threads: &Threads) {
    let (idle, used): (Vec<_>, Vec<_>) =
        runs.iter()
            .flat_map(GpuRun::stop_attempts)
            .partition(|(attempt, stop)| {
                let served = attempt.run.find_served(&stop.uuid);
                served.is_none_or(|served| served.clients.are_none())
            });
    let mut queues = vec![idle];
    queues.extend(used.into_iter().map(|stop| vec![stop]));
    threads.map_in_parallel(queues, |stops| {
        for (attempt, stop) in stops {
            let Attempt { run, step, history } = attempt;
            attempt.run_step(|| stop_served_daemon(run, step, stop, history));
        }
    });
}

/// A step that is about to run.
#[derive(Clone, Copy)]
struct Attempt<'a> {
    run: &'a Run<'a>,
    step: StepOf<'a>,
    history: &'a History,
}

impl<'a> Attempt<'a> {
    fn new(gpu: &ChangingGpu<'a>, number: usize, history: &'a History) -> Self {
        let step = StepOf {
            gpu: gpu.plan,
            number,
        };
        let run = gpu.run;
        Self { run, step, history }
    }

    /// Runs the step, unless the run must stop; returns false if it failed.
    fn run_step(self, work: impl FnOnce() -> Result<(), Cause>) -> bool {
        if self.run.must_stop() {
            return true;
        }
        let step = self.step;
        self.run.progress.begin(step);
        let worked = work();
        self.run.progress.end(step, worked.is_ok());
        let failure = match worked {
            Ok(()) => None,
            // It was neither done nor refused.
            Err(Cause::Interrupted) => return true,
            Err(cause) => {
                self.run.mark_failed();
                let attempt = format!("{}: {}", step.gpu.title(), step.action());
                Some(FailedStep {
                    gpu: step.gpu.index,
                    device: step.action().as_start().map(|start| start.name.clone()),
                    ..FailedStep::new(attempt, cause)
                })
            }
        };
        let is_done = failure.is_none();
        lock(&self.history.ended).insert(step.number, failure);
        is_done
    }
}

/// Stops the daemon of a step.
fn stop_served_daemon(
    run: &Run<'_>,
    step: StepOf<'_>,
    planned: &Stop,
    history: &History,
) -> Result<(), Cause> {
    let recorded = run.find_served(&planned.uuid);
    let Some(served) = recorded.or_else(|| run.find_lost(&planned.uuid)) else {
        return Ok(());
    };
    let successor = recorded.and_then(|served| find_successor(step.gpu, &served.record));
    if let ClientPolicy::Force(seconds) = planned.patience
        && planned.patience != ClientPolicy::AT_ONCE
        && !served.clients.are_none()
    {
        let clients: Vec<String> = planned.clients.iter().map(ToString::to_string).collect();
        let clients = match clients.as_slice() {
            [] => "clients".to_owned(),
            [one] => one.clone(),
            [first, ..] => format!("{} clients, among them {first}", clients.len()),
        };
        let others = format!("{clients}, for at most {seconds} s");
        run.progress.waits(step, &others);
    }
    let request = StopRequest {
        patience: planned.patience,
        means: planned.means,
        keeps_record: successor.is_some(),
    };
    let mut ended = stop_daemon(run, &served.record, request);
    if successor.is_some_and(|start| start.name != served.record.name) {
        let unlinked = run.dir.remove_link(&served.record);
        ended = ended.and(unlinked.map_err(Cause::from));
    }
    // A daemon whose directory could not be removed has stopped all the same.
    let has_stopped = ended.is_ok() || !is_alive(run, &served.record);
    if planned.alive && has_stopped {
        let is_by_force = served.record.finished && planned.patience != ClientPolicy::Idle;
        let clients = if is_by_force {
            planned.clients.len()
        } else {
            0
        };
        history.record_stop(&planned.uuid, clients);
    }
    ended
}

/// Starts the daemon of a new record, and an eager server.
fn start_daemon(
    run: &Run<'_>,
    mut record: DeviceRecord,
    start: &Start,
    history: &History,
) -> Result<(), Cause> {
    let node = run.context.node;
    record.since = Timestamp::now();
    record.compute_mode_before = node.compute_mode_before(&record.uuid, &run.dir);
    let served = run.find_served(&record.uuid);
    let of_this_boot = served.filter(|served| served.record.boot_id == node.boot_id);
    if let Some(served) = of_this_boot {
        let before = &served.record;
        record.restarts = before.restarts + u64::from(before.finished);
        if start.by == StartedBy::Heal {
            record.healed = before.recent_heals(record.since).collect();
        }
    }
    if start.by == StartedBy::Heal {
        record.healed.push(record.since);
    }
    let keeps_record = served.is_some();
    let cause = match bring_up(run, &mut record, keeps_record) {
        Ok(is_new) => {
            if is_new {
                history.record_start(record);
            }
            return Ok(());
        }
        Err(cause) => cause,
    };
    let kept = match served {
        Some(served) if start.by == StartedBy::Up => restore_record(run, &record, &served.record),
        Some(_) => ensure_record(run, &record),
        None => Ok(()),
    };
    if matches!(cause, Cause::CleanupFailed { .. }) {
        // The rollback tries again to stop it.
        history.record_start(record);
    }
    Err(cause.with_cleanup(kept))
}
