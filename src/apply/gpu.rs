//! The run on one GPU: its steps in order, with daemons in parallel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::daemons::{DeviceNow, serve, user_beside_caller};
use super::error::{Cause, FailedStep};
use super::rollback::{Effect, History};
use super::shared::{Name, Shared, StepOf};
use crate::geometry::Placement;
use crate::host::{Interrupt, Job, Pool};
use crate::mps::Patience;
use crate::node::Gpu;
use crate::nvml::GpuInstanceReading;
use crate::plan::{Action, GpuPlan, Place, Set, Start, StartServer, Step, Stop};
use crate::state::{DeviceKey, InstanceKey};

/// Runs the steps of one GPU in order. A daemon starts in the background as soon as its device exists,
/// while the next instance is made.
pub(super) struct GpuRun<'a> {
    pub(super) shared: &'a Shared<'a>,
    pub(super) plan: &'a GpuPlan,
    /// The GPU before the run; `None` if it is gone.
    pub(super) gpu: Option<&'a Gpu>,
    /// The GPU instances that exist now, tracked without asking NVML: only this run changes them.
    pub(super) instances: BTreeMap<Placement, GpuInstanceReading>,
    /// The GPU instances that this run has made.
    pub(super) made: BTreeSet<Placement>,
    pub(super) history: Arc<History>,
    pub(super) rolling_back: bool,
    /// True if MIG mode could not be switched off again: then there is no whole GPU to serve.
    pub(super) stays_partitioned: bool,
}

impl<'a> GpuRun<'a> {
    pub(super) fn new(shared: &'a Shared<'a>, plan: &'a GpuPlan) -> Self {
        let gpu = shared.context.node.gpu(&plan.uuid);
        let instances = gpu.map(|gpu| gpu.instances.clone()).unwrap_or_default();
        Self {
            shared,
            plan,
            gpu,
            instances: by_placement(instances),
            made: BTreeSet::new(),
            history: Arc::default(),
            rolling_back: false,
            stays_partitioned: false,
        }
    }

    /// Runs the steps.
    pub(super) fn run(&mut self, pool: &Pool<'a>) {
        let (shared, plan) = (self.shared, self.plan);
        let steps: Vec<(usize, &'a Step)> = plan.steps.iter().enumerate().collect();
        for steps in steps.chunk_by(|(_, a), (_, b)| a.action.goes_with(&b.action)) {
            if shared.is_over() {
                break;
            }
            let mut is_done = true;
            if let Action::Stop(_) = &steps[0].1.action {
                is_done = self.stops(steps, pool);
            } else {
                for &(number, step) in steps {
                    let attempt = self.attempt(number);
                    match &step.action {
                        Action::Start(start) => {
                            let device = self.device(start.place);
                            pool.later(Box::new(move |_| {
                                attempt.make(|attempt| attempt.start(start, device));
                            }));
                        }
                        action => {
                            is_done &= attempt.make(|attempt| self.step(action, attempt.step()));
                        }
                    }
                }
            }
            if !is_done {
                break;
            }
        }
        for stop in plan.steps.iter().filter_map(|step| step.action.as_stop()) {
            shared.names_in_use.keep(&stop.name);
        }
    }

    /// The steps that did not begin.
    pub(super) fn not_begun(&self) -> Vec<String> {
        self.plan
            .steps
            .iter()
            .enumerate()
            .filter(|(number, _)| !self.history.is_over(*number))
            .map(|(_, step)| format!("{}: {}", self.title(), step.action))
            .collect()
    }

    /// Stops daemons: idle ones one after another, the others in parallel, since each waits for its
    /// clients. Returns true if all have stopped.
    fn stops(&self, steps: &[(usize, &'a Step)], pool: &Pool<'a>) -> bool {
        let (idle, used): (Vec<_>, Vec<_>) = steps
            .iter()
            .filter_map(|&(number, step)| Some((self.attempt(number), step.action.as_stop()?)))
            .partition(|(_, stop)| {
                let served = self.shared.served(&stop.uuid);
                served.is_none_or(|served| served.clients.are_none())
            });
        let before = self.history.failed();
        let used = used.into_iter().map(|(attempt, stop)| -> Job<'a> {
            Box::new(move |_| {
                attempt.make(|attempt| attempt.stop(stop));
            })
        });
        pool.urgently(used.collect(), || {
            for (attempt, stop) in idle {
                attempt.make(|attempt| attempt.stop(stop));
            }
        });
        self.history.failed() == before
    }

    fn attempt(&self, number: usize) -> Attempt<'a> {
        Attempt {
            shared: self.shared,
            plan: self.plan,
            number,
            history: Arc::clone(&self.history),
        }
    }

    fn step(&mut self, action: &Action, step: StepOf<'_>) -> Result<(), Cause> {
        match action {
            Action::SwitchMig { on } => self.switch_mig(*on, step),
            Action::CreateGpuInstance(instance) => self.create_gpu_instance(instance),
            Action::CreateComputeInstance { instance, compute } => {
                self.create_compute_instance(*instance, *compute)
            }
            Action::DestroyComputeInstance { instance, compute } => {
                self.destroy_compute_instance(*instance, *compute)
            }
            Action::DestroyGpuInstance(instance) => self.destroy_gpu_instance(instance),
            Action::Set(set) => self.set(set),
            Action::StartServer(server) => self.shared.start_server(server),
            Action::EndStray(stray) => self.shared.end_stray(stray),
            Action::Start(_) | Action::Stop(_) => Ok(()),
        }
    }

    fn device(&self, place: Place) -> Option<DeviceNow> {
        let mut device = DeviceNow {
            key: DeviceKey::whole(&self.plan.uuid),
            uuid: self.plan.uuid.clone(),
            gpu: self.plan.index,
            profile: None,
        };
        let Place::Mig { placement, nth } = place else {
            return Some(device);
        };
        let instance = self.instances.get(&placement)?;
        let compute = instance.compute.get(nth)?;
        device.key.instance = Some(InstanceKey {
            profile: instance.profile,
            placement,
            compute: compute.placement,
        });
        device.uuid.clone_from(&compute.uuid);
        device.profile = self.gpu.map(|gpu| gpu.title(instance, Some(compute)));
        Some(device)
    }

    /// The interrupt that ends a wait; none during a rollback.
    pub(super) fn interrupt(&self) -> Option<&'a Interrupt> {
        (!self.rolling_back).then_some(&self.shared.context.environment.interrupt)
    }

    pub(super) fn title(&self) -> String {
        title(self.plan)
    }
}

pub(super) fn by_placement(
    instances: Vec<GpuInstanceReading>,
) -> BTreeMap<Placement, GpuInstanceReading> {
    instances
        .into_iter()
        .map(|instance| (instance.placement, instance))
        .collect()
}

/// `GPU 0 (GPU-5f1c…)`
fn title(plan: &GpuPlan) -> String {
    match plan.index {
        Some(_) => format!("{} ({})", plan.name(), plan.uuid),
        None => plan.name(),
    }
}

/// A step that is about to run.
struct Attempt<'a> {
    shared: &'a Shared<'a>,
    plan: &'a GpuPlan,
    number: usize,
    history: Arc<History>,
}

impl<'a> Attempt<'a> {
    fn step(&self) -> StepOf<'a> {
        StepOf {
            gpu: self.plan,
            number: self.number,
        }
    }

    /// Runs the step, unless the run is over; returns true if the run may continue.
    fn make(self, work: impl FnOnce(&Self) -> Result<(), Cause>) -> bool {
        if self.shared.is_over() {
            return true;
        }
        let step = self.step();
        let action = step.action();
        self.shared.progress.begin(step);
        let worked = work(&self);
        self.shared.progress.end(step, worked.is_ok());
        match worked {
            Ok(()) => self.history.over(self.number),
            // The user interrupted it: it was neither done nor refused.
            Err(Cause::Interrupted) => {}
            Err(cause) => {
                self.history.over(self.number);
                let attempt = format!("{}: {action}", title(self.plan));
                // A user can make her own daemon fail at will: that must not undo the daemons of others.
                let failure = if let Some(user) = self.shared.user_of(action) {
                    self.undo_change_of(action);
                    FailedStep {
                        attempt: format!("{attempt}, which runs as {user}"),
                        cause,
                        is_a_users: true,
                    }
                } else {
                    self.shared.fail();
                    FailedStep::new(attempt, cause)
                };
                let goes_on = failure.is_a_users;
                self.history.did_not(self.number, failure);
                return goes_on;
            }
        }
        true
    }

    /// Restores the settings of a user's daemon after a failed change. If that fails too, the record stays
    /// unfinished and the next `up` continues.
    fn undo_change_of(&self, action: &Action) {
        let Action::Set(set) = action else { return };
        if let Some((before, after)) = self.history.take_change(&set.uuid) {
            let _ = self.shared.change_back(&before, &after.settings);
        }
    }

    fn start(&self, start: &Start, device: Option<DeviceNow>) -> Result<(), Cause> {
        let shared = self.shared;
        let device = device.ok_or(Cause::NoDevice)?;
        match shared
            .names_in_use
            .wait_for(&start.name, || shared.is_over())
        {
            Name::Free => {}
            Name::Kept => return Err(Cause::NameInUse(start.name.clone())),
            Name::Pointless => return Err(Cause::Interrupted),
        }
        shared.start_daemon(device, start, &self.history)
    }

    fn stop(&self, stop: &Stop) -> Result<(), Cause> {
        let served = self.shared.served(&stop.uuid);
        let Some(served) = served.or_else(|| self.shared.lost(&stop.uuid)) else {
            self.shared.names_in_use.gone(&stop.name);
            return Ok(());
        };
        let idle = served.clients.are_none();
        if let Patience::Force(seconds) = stop.patience
            && stop.patience != Patience::AT_ONCE
            && !idle
        {
            let clients: Vec<String> = stop.clients.iter().map(ToString::to_string).collect();
            let clients = match clients.as_slice() {
                [] => "clients".to_owned(),
                [one] => one.clone(),
                [first, ..] => format!("{} clients, among them {first}", clients.len()),
            };
            let others = format!("{clients}, for at most {seconds} s");
            self.shared.progress.waits(self.step(), &others);
        }
        let ended = self
            .shared
            .end(self.plan, &served.record, (stop.patience, stop.means), idle);
        // A daemon whose directory could not be removed has stopped all the same.
        let has_gone = ended.is_ok() || !self.shared.is_alive(&served.record);
        if has_gone {
            self.shared.names_in_use.gone(&stop.name);
        }
        if stop.alive && served.record.finished && has_gone {
            let record = Box::new(served.record.clone());
            let by_force = stop.patience != Patience::Idle;
            let clients = if by_force { stop.clients.len() } else { 0 };
            self.history.did(Effect::Stopped { record, clients });
        }
        ended
    }
}

impl Shared<'_> {
    /// The user whose daemon an action concerns, if that is not the caller.
    fn user_of(&self, action: &Action) -> Option<String> {
        match action {
            Action::Start(start) => user_beside_caller(start.serve().clone()),
            Action::Set(Set { uuid, .. }) | Action::StartServer(StartServer { uuid, .. }) => {
                user_beside_caller(serve(&self.served(uuid)?.record))
            }
            _ => None,
        }
    }

    fn start_daemon(
        &self,
        device: DeviceNow,
        start: &Start,
        history: &History,
    ) -> Result<(), Cause> {
        let (record, result) = self.bring_up_new(device, start);
        let record = Box::new(record);
        let cause = match result {
            Ok(is_new) => {
                if is_new {
                    history.did(Effect::Started(record));
                }
                return Ok(());
            }
            Err(cause) => cause,
        };
        let kept = if start.by.keeps_record() {
            self.keep_record(&record)
        } else {
            Ok(())
        };
        if matches!(cause, Cause::CleanupFailed { .. }) {
            // The rollback tries again to stop it.
            history.did(Effect::Started(record));
        }
        Err(cause.and(kept))
    }
}
