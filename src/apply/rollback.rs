//! The changes that a run has made to one GPU, and how they are undone, in reverse order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};

use super::daemons::starts_again;
use super::error::{Cause, FailedStep, RolledBack};
use super::gpu::GpuRun;
use super::shared::lock;
use crate::geometry::{ComputeChoice, ComputeProfileId, Placement};
use crate::host::Pool;
use crate::mps::{Means, Patience};
use crate::nvml::NvmlError;
use crate::plan::GpuInstance;
use crate::state::{DeviceKey, DeviceRecord};

/// The results of the rollback, by the GPU's position in the plan and the order of the tries.
pub(super) type Outcomes = Mutex<BTreeMap<(usize, usize), RolledBack>>;

impl<'a> GpuRun<'a> {
    /// Undoes the changes in reverse order.
    pub(super) fn roll_back(mut self, place: usize, outcomes: &Arc<Outcomes>, pool: &Pool<'a>) {
        self.rolling_back = true;
        let mut came = RolledBack::default();
        let mut done = self.history.take();
        if !done.is_empty() {
            self.shared.progress.undoes(self.plan);
        }
        let mut hangs = false;
        // Stopped daemons come first in every plan, so they remain last here and start again in parallel.
        while let Some(step) = done.pop_if(|step| !matches!(step, Effect::Stopped { .. })) {
            // Each call to a GPU that hangs takes as long as the first.
            let result = if hangs {
                Err(Cause::Other("not tried: the GPU hangs".to_owned()))
            } else {
                self.undo(&step)
            };
            hangs |= matches!(result, Err(Cause::Nvml(NvmlError::Hung { .. })));
            self.stays_partitioned |= matches!(step, Effect::MigMode { on: true, .. })
                && !matches!(result, Ok(()) | Err(Cause::Pending));
            came.add(&self.title(), &step, result);
        }
        lock(outcomes).insert((place, 0), came);
        let run = Arc::new(self);
        for (number, step) in done.into_iter().enumerate() {
            let (run, outcomes) = (Arc::clone(&run), Arc::clone(outcomes));
            pool.later(Box::new(move |_| {
                let mut came = RolledBack::default();
                came.add(&run.title(), &step, run.start_again(&step));
                lock(&outcomes).insert((place, number + 1), came);
            }));
        }
    }

    fn undo(&mut self, step: &Effect) -> Result<(), Cause> {
        match step {
            Effect::MigMode { on, was_ours } => {
                self.switch_back(*on)?;
                let node_record = &self.shared.node_record;
                Ok(node_record.switched_on(&self.plan.uuid, *was_ours)?)
            }
            Effect::GpuInstance(instance) => {
                let (profile, placement) = (instance.profile, instance.placement);
                if !self.instances.contains_key(&placement) {
                    self.reread_instances()?;
                }
                self.unmake_gpu_instance(placement)?;
                let created = self.created(profile, placement, None);
                self.shared.node_record.remove(|other| *other == created);
                Ok(())
            }
            Effect::GpuInstanceGone { instance, ours } => self.make_gpu_instance(instance, *ours),
            Effect::ComputeInstance { instance, compute } => match compute {
                Some(compute) => self.remove(*instance, *compute),
                None => self.remove_strays(*instance),
            },
            Effect::ComputeInstanceGone {
                instance,
                profile,
                compute,
                ours,
            } => self.bring_part_back(*instance, *profile, *compute, *ours),
            Effect::Started(record) => {
                let shared = self.shared;
                shared.end(self.plan, record, (Patience::Idle, Means::Session), true)
            }
            Effect::Stopped { .. } => self.start_again(step),
            Effect::Set { before, after } => self.shared.change_back(before, &after.settings),
        }
    }

    fn bring_part_back(
        &mut self,
        instance: Placement,
        profile: ComputeProfileId,
        placement: Placement,
        ours: bool,
    ) -> Result<(), Cause> {
        let parent = self.instances.get(&instance).ok_or(Cause::NoInstance)?;
        if ours {
            let created = self.created(parent.profile, instance, Some(placement));
            self.shared.node_record.add(&created)?;
        }
        let offered = self.offered(instance)?;
        let as_it_was = ComputeChoice::Exactly { profile, placement };
        self.make_compute_instance(instance, as_it_was, &offered)?;
        Ok(())
    }

    fn remove(&mut self, instance: Placement, compute: Placement) -> Result<(), Cause> {
        self.unmake_compute_instance(instance, compute)?;
        self.shared.node_record.remove(|created| {
            created.gpu == self.plan.uuid
                && created.placement == instance
                && created.compute == Some(compute)
        });
        Ok(())
    }

    /// Removes what a call with an unknown outcome may have made.
    fn remove_strays(&mut self, instance: Placement) -> Result<(), Cause> {
        let known = self.compute_placements(instance);
        self.reread_instances()?;
        for placement in self.compute_placements(instance) {
            if !known.contains(&placement) {
                self.remove(instance, placement)?;
            }
        }
        Ok(())
    }

    fn compute_placements(&self, instance: Placement) -> Vec<Placement> {
        self.instances
            .get(&instance)
            .into_iter()
            .flat_map(|parent| &parent.compute)
            .map(|part| part.placement)
            .collect()
    }

    /// Starts a stopped daemon again.
    fn start_again(&self, step: &Effect) -> Result<(), Cause> {
        let Effect::Stopped { record, .. } = step else {
            return Ok(());
        };
        let uuid = self.uuid_now(record).ok_or(Cause::NoDevice)?;
        let restarted = self.shared.restart_daemon(record, &uuid);
        match restarted {
            Err(cause) if starts_again(self.plan, record) => {
                Err(cause.and(self.shared.keep_record(record)))
            }
            other => other,
        }
    }

    /// The present UUID of a recorded device; `None` if it does not exist.
    fn uuid_now(&self, record: &DeviceRecord) -> Option<String> {
        let DeviceKey { instance, .. } = &record.key;
        if instance.is_none() && self.stays_partitioned {
            return None;
        }
        // A caller who may not see instances cannot have changed any.
        let is_hidden = self.gpu.is_none_or(|gpu| gpu.hidden.is_some());
        let Some(key) = instance.filter(|_| !is_hidden) else {
            return Some(record.uuid.clone());
        };
        let parent = self.instances.get(&key.placement)?;
        parent
            .compute
            .iter()
            .find(|part| part.placement == key.compute)
            .map(|part| part.uuid.clone())
    }
}

impl RolledBack {
    fn add(&mut self, gpu: &str, step: &Effect, result: Result<(), Cause>) {
        if let Effect::Stopped { clients, .. } = step {
            self.clients += clients;
        }
        self.cut_short |= matches!(&result, Err(cause) if !cause.is_final());
        match result {
            Ok(()) => self.undone.push(format!("{gpu}: {step}")),
            Err(cause @ Cause::Pending) => self.stands.push(format!("{gpu}: MIG mode: {cause}")),
            Err(cause) if step.took_away() => self.missing.push(format!("{gpu}: {step}: {cause}")),
            Err(cause) => self.stands.push(format!("{gpu}: {step}: {cause}")),
        }
    }
}

/// A change that a run has made to a GPU, with what undoing it takes.
#[derive(Debug)]
pub(super) enum Effect {
    /// MIG mode was switched, or the change is pending in the driver.
    MigMode {
        on: bool,
        /// True if mig-mps had switched it on before.
        was_ours: bool,
    },
    /// A GPU instance was made, or may have been.
    GpuInstance(GpuInstance),
    /// A GPU instance was destroyed.
    GpuInstanceGone {
        instance: GpuInstance,
        /// True if mig-mps had made it.
        ours: bool,
    },
    /// A compute instance was made, or may have been; then its placement is unknown.
    ComputeInstance {
        instance: Placement,
        compute: Option<Placement>,
    },
    /// A compute instance was destroyed.
    ComputeInstanceGone {
        instance: Placement,
        profile: ComputeProfileId,
        compute: Placement,
        /// True if mig-mps had made it in a GPU instance that it had not made.
        ours: bool,
    },
    /// A daemon was started.
    Started(Box<DeviceRecord>),
    /// A daemon was ended.
    Stopped {
        record: Box<DeviceRecord>,
        /// The number of clients that were terminated with it.
        clients: usize,
    },
    /// Settings of a running daemon were changed, or may have been.
    Set {
        /// The record with the old settings.
        before: Box<DeviceRecord>,
        /// The record with the new settings.
        after: Box<DeviceRecord>,
    },
}

impl Effect {
    /// True if it removed something, which is missing unless it is undone.
    pub(super) fn took_away(&self) -> bool {
        match self {
            Self::MigMode { on, .. } => !on,
            Self::GpuInstanceGone { .. }
            | Self::ComputeInstanceGone { .. }
            | Self::Stopped { .. } => true,
            _ => false,
        }
    }
}

/// Names what was made or removed.
impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MigMode { .. } => f.write_str("MIG mode on"),
            Self::GpuInstance(instance) | Self::GpuInstanceGone { instance, .. } => instance.fmt(f),
            Self::ComputeInstance {
                instance,
                compute: Some(compute),
            }
            | Self::ComputeInstanceGone {
                instance, compute, ..
            } => write!(
                f,
                "compute instance {compute} of the GPU instance at {instance}"
            ),
            Self::ComputeInstance {
                instance,
                compute: None,
            } => write!(f, "a compute instance of the GPU instance at {instance}"),
            Self::Started(record) | Self::Stopped { record, .. } => {
                write!(f, "daemon of {}", record.name)
            }
            Self::Set { before, .. } => write!(f, "changed settings of {}", before.name),
        }
    }
}

/// The changes that a run has made to one GPU so far. Several threads write it.
#[derive(Debug, Default)]
pub(super) struct History {
    done: Mutex<Vec<Effect>>,
    /// The plan's steps that succeeded or failed.
    over: Mutex<BTreeSet<usize>>,
    /// The steps that failed.
    failures: Mutex<BTreeMap<usize, FailedStep>>,
}

impl History {
    /// Records a change.
    pub(super) fn did(&self, done: Effect) {
        lock(&self.done).push(done);
    }

    /// True if the MIG mode was switched, or its change is pending.
    pub(super) fn has_switched(&self) -> bool {
        let done = lock(&self.done);
        done.iter()
            .any(|done| matches!(done, Effect::MigMode { .. }))
    }

    /// Takes all changes, in order.
    pub(super) fn take(&self) -> Vec<Effect> {
        std::mem::take(&mut *lock(&self.done))
    }

    /// Takes the change of a daemon's settings: the record before and after it.
    pub(super) fn take_change(&self, uuid: &str) -> Option<(Box<DeviceRecord>, Box<DeviceRecord>)> {
        let mut done = lock(&self.done);
        let place = done.iter().rposition(
            |effect| matches!(effect, Effect::Set { before, .. } if before.uuid == uuid),
        )?;
        match done.remove(place) {
            Effect::Set { before, after } => Some((before, after)),
            _ => None,
        }
    }

    /// Records the failure of the step with that number.
    pub(super) fn did_not(&self, step: usize, failure: FailedStep) {
        lock(&self.failures).insert(step, failure);
    }

    /// The number of steps that have failed so far.
    pub(super) fn failed(&self) -> usize {
        lock(&self.failures).len()
    }

    /// Takes the failures, in the plan's order.
    pub(super) fn take_failures(&self) -> Vec<FailedStep> {
        let failures = std::mem::take(&mut *lock(&self.failures));
        failures.into_values().collect()
    }

    /// Records that the step with that number has succeeded or failed.
    pub(super) fn over(&self, step: usize) {
        lock(&self.over).insert(step);
    }

    /// True if the step has succeeded or failed.
    pub(super) fn is_over(&self, step: usize) -> bool {
        lock(&self.over).contains(&step)
    }
}
