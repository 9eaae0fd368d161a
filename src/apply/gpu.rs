//! The run on one GPU: its steps in order, with daemons in parallel, and the rollback. Daemons stop before, on all GPUs.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread::scope;

use super::cause::Cause;
use super::closing::close_daemon;
use super::context::{Run, StepOf};
use super::daemon_stop::{StopRequest, end_stray, find_successor, stop_daemon, stop_served_daemon};
use super::daemons::{
    new_record, restart_daemon, restore_settings, set_daemon_settings, start_daemon, start_server,
};
use super::error::{FailedStep, RolledBack};
use super::gpu_state::{ChangingGpu, GpuState, History};
use super::instances::{
    create_compute_instance, create_gpu_instance, destroy_compute_instance, destroy_gpu_instance,
};
use super::mig_mode::switch_mig;
use super::rollback::{StepBack, steps_back};
use crate::failure::CAUSE;
use crate::host::{Threads, lock};
use crate::node::Served;
use crate::nvml::NvmlError;
use crate::plan::{Action, GpuPlan, Step, Stop};
use crate::state::{DeviceKey, DeviceRecord};

/// Runs the steps of one GPU in order. A daemon starts in the background as soon as its device exists,
/// while the next instance is made.
pub(super) struct GpuRun<'a> {
    pub(super) gpu: ChangingGpu<'a>,
    before: GpuState,
    pub(super) history: History,
    /// The number of the next step.
    next: usize,
    /// True if a step failed on another GPU of a joint device.
    pub(super) is_held_up: bool,
    rolled_back: RolledBack,
}

impl<'a> GpuRun<'a> {
    pub(super) fn new(run: &'a Run<'a>, plan: &'a GpuPlan) -> Self {
        let before = GpuState::before_run(run, plan);
        let mut running = before.daemons.clone();
        running.retain(|uuid, _| run.find_served(uuid).is_some_and(Served::is_alive));
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
                daemons: Mutex::new(running),
                ..History::default()
            },
            before,
            next: 0,
            is_held_up: false,
            rolled_back: RolledBack::default(),
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

    /// The UUID of the GPU.
    pub(super) fn uuid(&self) -> &str {
        &self.gpu.plan.uuid
    }

    /// Runs the steps up to the start of the daemon of a joint device, for which the other GPUs must be ready, too.
    pub(super) fn run_to_joint_daemon(self, threads: &Threads) -> Self {
        let steps = &self.gpu.plan.steps;
        let is_joint = |step: &Step| {
            step.action
                .as_start()
                .is_some_and(|start| !start.joint.is_empty())
        };
        let end = steps.iter().position(is_joint).unwrap_or(steps.len());
        self.run_steps_until(end, threads)
    }

    /// Runs the remaining steps.
    pub(super) fn run_to_end(self, threads: &Threads) -> Self {
        let end = self.gpu.plan.steps.len();
        self.run_steps_until(end, threads)
    }

    /// Runs the steps up to one with this number.
    fn run_steps_until(mut self, end: usize, threads: &Threads) -> Self {
        if self.history.has_failed() || self.is_held_up {
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
    pub(super) fn is_to_be_undone(&self, was_served: bool) -> bool {
        let ended = lock(&self.history.ended);
        let mut actions = ended
            .iter()
            .filter(|(_, failure)| failure.is_some())
            .map(|(number, _)| &self.gpu.plan.steps[*number].action);
        if was_served {
            actions.next().is_some()
        } else {
            actions.any(|action| action.as_start().is_none())
        }
    }

    /// True if daemons of its devices ran before.
    pub(super) fn had_daemons(&self) -> bool {
        !self.before.daemons.is_empty()
    }

    /// True if a daemon of a device with this name ran before.
    pub(super) fn had_name(&self, name: &str) -> bool {
        let mut before = self.before.daemons.values();
        before.any(|record| record.name == name)
    }

    /// Begins to undo what the run has changed: stops the daemons that it has started.
    pub(super) fn stop_started_daemons(&mut self) {
        self.gpu.rolling_back = true;
        self.rolled_back.clients = *lock(&self.history.ended_clients);
        let steps = self.find_steps_back();
        if !(steps.is_empty() && self.gpu.unknown.is_empty()) {
            self.gpu.run.progress.undoes(self.gpu.plan);
        }
        for step in steps {
            if let StepBack::Stop(record) = &step {
                let before = self.before.daemons.get(&record.uuid);
                let request = StopRequest {
                    keeps_record: before.is_some()
                        && find_successor(self.gpu.plan, record).is_some(),
                    ..StopRequest::IDLE
                };
                let result = stop_daemon(self.gpu.run, record, request);
                self.add_step_result(&step, result);
            }
        }
    }

    fn find_steps_back(&self) -> Vec<StepBack> {
        let now = GpuState {
            mig: self.gpu.mig,
            instances: self.gpu.instances.clone(),
            daemons: lock(&self.history.daemons).clone(),
        };
        steps_back(&now, &self.before, self.gpu.offered_profiles())
    }

    /// Undoes the rest of what the run has changed, but for the daemons of joint devices: their other GPUs come first.
    pub(super) fn roll_back(mut self, threads: &Threads) -> Self {
        let mut hangs = self.read_unknown();
        let (starts, steps): (Vec<_>, Vec<_>) = self
            .find_steps_back()
            .into_iter()
            .filter(|step| !matches!(step, StepBack::Stop(_)))
            .partition(|step| matches!(step, StepBack::Start(_)));
        for step in steps {
            // Each call to a GPU that hangs takes as long as the first.
            let result = match &step {
                StepBack::Change(_) if hangs => Err(Cause::Other(
                    "not attempted, because the GPU hangs".to_owned(),
                )),
                StepBack::Change(action) => run_action(&mut self.gpu, action, None, &self.history),
                StepBack::Set { earlier, now } => {
                    restore_settings(self.gpu.run, earlier, &now.settings)
                }
                StepBack::Stop(_) | StepBack::Start(_) => Ok(()),
            };
            hangs |= matches!(result, Err(Cause::Nvml(NvmlError::Hung { .. })));
            self.add_step_result(&step, result);
        }
        let starts = starts.into_iter().filter(|step| !is_joint_start(step));
        let started = threads.map_in_parallel(starts.collect(), |step| {
            let result = match &step {
                StepBack::Start(record) => start_again(&self.gpu, record),
                _ => Ok(()),
            };
            (step, result)
        });
        for (step, result) in started {
            self.add_step_result(&step, result);
        }
        // The instances from before keep their owner.
        self.gpu.run.node_record.restore_owners(
            &self.gpu.plan.uuid,
            |created| created.is_among(self.before.instances.values()),
            |created| {
                created.is_among(self.gpu.instances.values())
                    || self.gpu.unknown.contains_key(&created.placement)
            },
        );
        self
    }

    /// Starts the daemons of joint devices again that have stopped, unless a GPU of the device is still in MIG mode: `in_mig_mode`
    /// has the UUIDs of those. Returns the outcome of the whole rollback.
    pub(super) fn start_joint_daemons_again(mut self, in_mig_mode: &[String]) -> RolledBack {
        for step in self.find_steps_back().into_iter().filter(is_joint_start) {
            let StepBack::Start(record) = &step else {
                continue;
            };
            let result = match in_mig_mode.iter().find(|gpu| record.key.has_gpu(gpu)) {
                Some(gpu) => Err(Cause::Other(format!("{gpu} is in MIG mode"))),
                None => start_again(&self.gpu, record),
            };
            self.add_step_result(&step, result);
        }
        self.rolled_back
    }

    /// Reads from the hardware what calls with an unknown outcome may have made. Returns true if the GPU hangs.
    fn read_unknown(&mut self) -> bool {
        if self.gpu.unknown.is_empty() {
            return false;
        }
        let profiles = self.gpu.offered_profiles().to_vec();
        match self.gpu.call(move |handle| handle.gpu_instances(&profiles)) {
            Ok(instances) => {
                for instance in instances {
                    if self.gpu.unknown.contains_key(&instance.placement) {
                        self.gpu.instances.insert(instance.placement, instance);
                    }
                }
                self.gpu.unknown.clear();
                false
            }
            Err(error) => {
                for thing in self.gpu.unknown.values() {
                    self.rolled_back.cut_short = true;
                    let what = format!("{}: {thing}{CAUSE}{error}", self.gpu.plan.title());
                    self.rolled_back.stands.push(what);
                }
                matches!(error, NvmlError::Hung { .. })
            }
        }
    }

    fn add_step_result(&mut self, step: &StepBack, result: Result<(), Cause>) {
        let rolled_back = &mut self.rolled_back;
        let Err(cause) = result else {
            rolled_back.undone += 1;
            return;
        };
        // What the rollback kept on purpose, another try would keep too.
        rolled_back.cut_short |= !matches!(cause, Cause::LeftOn(_) | Cause::Pending);
        let gpu = self.gpu.plan.title();
        match cause {
            Cause::Pending | Cause::LeftOn(_) => rolled_back.stands.push(format!("{gpu}: {cause}")),
            _ if step.makes_again() => rolled_back
                .missing
                .push(format!("{gpu}: {step}{CAUSE}{cause}")),
            _ => rolled_back
                .stands
                .push(format!("{gpu}: {step}{CAUSE}{cause}")),
        }
    }
}

/// Runs an action that has a place among the others, as a step of the plan or of the rollback.
fn run_action(
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
        Action::Close(close) => close_daemon(gpu.run, close),
        Action::Start(_) | Action::Stop(_) => Ok(()),
    }
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
                let attempt = format!("{}: cannot {}", step.gpu.title(), step.action());
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

fn is_joint_start(step: &StepBack) -> bool {
    matches!(step, StepBack::Start(record) if record.key.is_joint())
}

/// Starts a stopped daemon again.
fn start_again(gpu: &ChangingGpu<'_>, record: &DeviceRecord) -> Result<(), Cause> {
    let uuid = current_uuid(gpu, record).ok_or(Cause::NoDevice)?;
    let keeps_record = find_successor(gpu.plan, record).is_some();
    restart_daemon(gpu.run, record, &uuid, keeps_record)
}

/// The present UUID of a recorded device; `None` if it does not exist.
fn current_uuid(gpu: &ChangingGpu<'_>, record: &DeviceRecord) -> Option<String> {
    let DeviceKey { instance, .. } = &record.key;
    // Where MIG mode could not be switched off again, there is no whole GPU to serve.
    if instance.is_none() && gpu.mig {
        return None;
    }
    let is_hidden = gpu
        .snapshot
        .is_none_or(|snapshot| snapshot.hidden.is_some());
    let key = match instance {
        Some(key) if !is_hidden => key,
        // A caller who may not see instances cannot have changed any.
        _ => return Some(record.uuid.clone()),
    };
    gpu.instances
        .get(&key.placement)?
        .compute
        .iter()
        .find(|compute| compute.placement == key.compute)
        .map(|compute| compute.uuid.clone())
}
