use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::done::{Done, History};
use super::error::Failure;
use super::{Cause, Shared, joined};
use crate::geometry::Placement;
use crate::host::Interrupt;
use crate::mps::Patience;
use crate::node::{DeviceKey, Gpu, InstanceKey, Served};
use crate::nvml::GpuInstanceReading;
use crate::plan::{Action, GpuPlan, Place, Start, Step, Stop};

/// The steps of one GPU, carried out in order. Daemons start in the background as soon as their
/// device exists, while the next instance is made.
pub(super) struct GpuRun<'a> {
    pub(super) shared: &'a Shared<'a>,
    pub(super) plan: &'a GpuPlan,
    /// The GPU as it was before; `None` for one that is gone.
    pub(super) gpu: Option<&'a Gpu>,
    /// What stands on it now. NVML is not asked again: everything here is this run's doing.
    pub(super) standing: BTreeMap<Placement, GpuInstanceReading>,
    /// Those that this run has made.
    pub(super) made: BTreeSet<Placement>,
    pub(super) history: Arc<History>,
    pub(super) rolling_back: bool,
    /// Whether MIG mode could not be switched off again: then there is no whole GPU to serve.
    pub(super) stays_partitioned: bool,
}

impl<'a> GpuRun<'a> {
    pub(super) fn new(shared: &'a Shared<'a>, plan: &'a GpuPlan) -> Self {
        let mut gpus = shared.site.node.gpus.iter();
        let gpu = gpus.find(|gpu| gpu.uuid == plan.uuid);
        let instances = gpu.map(|gpu| gpu.instances.clone()).unwrap_or_default();
        Self {
            shared,
            plan,
            gpu,
            standing: instances
                .into_iter()
                .map(|instance| (instance.placement, instance))
                .collect(),
            made: BTreeSet::new(),
            history: Arc::default(),
            rolling_back: false,
            stays_partitioned: false,
        }
    }

    /// Carries the steps out; returns those that failed.
    pub(super) fn run(&mut self) -> Vec<Failure> {
        let (shared, plan) = (self.shared, self.plan);
        let steps: Vec<(usize, &Step)> = plan.steps.iter().enumerate().collect();
        std::thread::scope(|scope| {
            let mut failures = Vec::new();
            let mut starts = Vec::new();
            for steps in steps.chunk_by(|(_, a), (_, b)| a.action.goes_with(&b.action)) {
                if shared.is_over() {
                    break;
                }
                if let Action::Stop(_) = &steps[0].1.action {
                    failures.extend(self.stops(steps));
                } else {
                    for &(number, step) in steps {
                        match &step.action {
                            Action::Start(start) => {
                                let device = self.device(start.place);
                                let attempt = self.attempt(number);
                                starts.push(scope.spawn(move || {
                                    attempt.make(|history| {
                                        let (key, uuid) = device.ok_or(Cause::NoDevice)?;
                                        if !shared
                                            .leaving
                                            .wait_for(&start.name, || shared.is_over())
                                        {
                                            return Err(Cause::Interrupted);
                                        }
                                        shared.start_daemon(key, &uuid, start, history)
                                    })
                                }));
                            }
                            action => {
                                let attempt = self.attempt(number);
                                failures.extend(attempt.make(|_| self.step(action)));
                            }
                        }
                    }
                }
                if !failures.is_empty() {
                    break;
                }
            }
            failures.extend(starts.into_iter().filter_map(joined));
            failures
        })
    }

    /// The steps that were not begun.
    pub(super) fn left(&self) -> Vec<String> {
        let steps = self.plan.steps.iter().enumerate();
        steps
            .filter(|(number, _)| !self.history.is_over(*number))
            .map(|(_, step)| format!("{}: {}", self.title(), step.action))
            .collect()
    }

    /// Ends daemons: those without clients one after another, the others side by side, since each
    /// waits for its clients.
    fn stops(&self, steps: &[(usize, &Step)]) -> Vec<Failure> {
        let (idle, used): (Vec<_>, Vec<_>) = steps
            .iter()
            .filter_map(|&(number, step)| match &step.action {
                Action::Stop(stop) => Some((number, stop)),
                _ => None,
            })
            .partition(|(_, stop)| self.served(&stop.uuid).is_none_or(is_idle));
        let end = |(number, stop): (usize, &Stop)| {
            let attempt = self.attempt(number);
            attempt.make(|_| self.stop(stop))
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = used
                .into_iter()
                .map(|stop| scope.spawn(move || end(stop)))
                .collect();
            let mut failures: Vec<Failure> = idle.into_iter().filter_map(end).collect();
            failures.extend(threads.into_iter().filter_map(joined));
            failures
        })
    }

    fn attempt(&self, number: usize) -> Attempt<'a> {
        Attempt {
            shared: self.shared,
            plan: self.plan,
            number,
            history: Arc::clone(&self.history),
        }
    }

    fn step(&mut self, action: &Action) -> Result<(), Cause> {
        match action {
            Action::SwitchMig { on } => self.switch_mig(*on),
            Action::CreateGpuInstance {
                profile,
                name,
                placement,
            } => self.create_gpu_instance(*profile, name, *placement),
            Action::CreateComputeInstance { instance, compute } => {
                self.create_compute_instance(*instance, *compute)
            }
            Action::DestroyComputeInstance { instance, compute } => {
                self.destroy_compute_instance(*instance, *compute)
            }
            Action::DestroyGpuInstance {
                profile,
                name,
                placement,
            } => self.destroy_gpu_instance(*profile, name, *placement),
            Action::Set(set) => self.set(set),
            Action::StartServer(server) => self.start_server(server),
            Action::EndStray(stray) => self.end_stray(stray),
            Action::Start(_) | Action::Stop(_) => Ok(()),
        }
    }

    fn stop(&self, stop: &Stop) -> Result<(), Cause> {
        let Some(served) = self.served(&stop.uuid) else {
            self.shared.leaving.gone(&stop.name);
            return Ok(());
        };
        let idle = served.is_known && served.clients.is_empty();
        let ended = self.end(&served.record, (stop.patience, stop.means), idle);
        // Also one whose directory could not be cleared away has gone.
        let has_gone = ended.is_ok() || !self.shared.is_alive(&served.record);
        if has_gone {
            self.shared.leaving.gone(&stop.name);
        }
        if stop.alive && served.record.finished && has_gone {
            let record = Box::new(served.record.clone());
            let by_force = stop.patience != Patience::Idle;
            let clients = if by_force { stop.clients.len() } else { 0 };
            self.history.did(Done::Stopped { record, clients });
        }
        ended
    }

    pub(super) fn served(&self, uuid: &str) -> Option<&'a Served> {
        self.shared
            .site
            .node
            .served
            .iter()
            .find(|served| served.record.uuid == uuid && served.run_dir == self.shared.run_dir)
    }

    fn device(&self, place: Place) -> Option<(DeviceKey, String)> {
        let gpu = self.plan.uuid.clone();
        match place {
            Place::Whole => {
                let key = DeviceKey {
                    gpu: gpu.clone(),
                    instance: None,
                };
                Some((key, gpu))
            }
            Place::Part { placement, nth } => {
                let instance = self.standing.get(&placement)?;
                let compute = instance.compute.get(nth)?;
                let part = InstanceKey {
                    profile: instance.profile,
                    placement,
                    compute: compute.placement,
                };
                let key = DeviceKey {
                    gpu,
                    instance: Some(part),
                };
                Some((key, compute.uuid.clone()))
            }
        }
    }

    /// Who may cut a wait short: nobody any more once the run is undone.
    pub(super) fn interrupt(&self) -> Option<&'a Interrupt> {
        (!self.rolling_back).then_some(&self.shared.site.environment.interrupt)
    }

    pub(super) fn title(&self) -> String {
        title(self.plan)
    }
}

/// Whether a daemon is known to have no clients.
fn is_idle(served: &Served) -> bool {
    served.is_known && served.clients.is_empty()
}

/// `GPU 0 (GPU-5f1c…)`
fn title(plan: &GpuPlan) -> String {
    format!("GPU {} ({})", plan.index, plan.uuid)
}

/// One step about to be tried.
struct Attempt<'a> {
    shared: &'a Shared<'a>,
    plan: &'a GpuPlan,
    number: usize,
    history: Arc<History>,
}

impl Attempt<'_> {
    /// Tries it, unless the run is over; returns its failure.
    fn make(&self, work: impl FnOnce(&History) -> Result<(), Cause>) -> Option<Failure> {
        if self.shared.is_over() {
            return None;
        }
        let action = &self.plan.steps[self.number].action;
        self.shared.progress.begin(self.plan.index, action);
        let result = work(&self.history);
        match result {
            Ok(()) => {
                self.history.over(self.number);
                self.shared.progress.end(self.plan.index, action);
                None
            }
            // Cut short by the user: it was neither done nor refused.
            Err(Cause::Interrupted) => None,
            Err(cause) => {
                self.history.over(self.number);
                self.shared.fail();
                Some((format!("{}: {action}", title(self.plan)), cause))
            }
        }
    }
}

impl Shared<'_> {
    fn start_daemon(
        &self,
        key: DeviceKey,
        uuid: &str,
        start: &Start,
        history: &History,
    ) -> Result<(), Cause> {
        let (record, result) = self.bring_up_new(key, uuid, start);
        match result {
            Ok(false) => {}
            Ok(true) => history.did(Done::Started(Box::new(record))),
            Err(cause) => {
                let kept = if start.again {
                    self.keep_record(&record)
                } else {
                    Ok(())
                };
                if matches!(cause, Cause::Left { .. }) {
                    // Undoing tries again to end it.
                    history.did(Done::Started(Box::new(record)));
                }
                return Err(cause.and(kept));
            }
        }
        Ok(())
    }
}
