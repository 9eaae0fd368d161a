//! GPU and compute instances: `create_` and `destroy_` record what they do, `make_` and `unmake_` only call NVML.

use super::cause::Cause;
use super::effect::Effect;
use super::gpu::GpuRun;
use super::retry;
use crate::geometry::{
    ComputeChoice, ComputeInstanceProfile, GpuInstanceId, Placement, ProfileId, ProfileName,
};
use crate::host::Interrupt;
use crate::nvml::{Code, ComputeInstanceReading, GpuInstanceReading, NvmlError, Session};
use crate::state::{Created, Taken};

impl GpuRun<'_> {
    pub(super) fn create_gpu_instance(
        &mut self,
        profile: ProfileId,
        name: &ProfileName,
        placement: Placement,
    ) -> Result<(), Cause> {
        let created = self.created(profile, placement, None);
        // Recorded first: what a crash leaves behind is then known as ours.
        self.shared.node_record.add(created.clone())?;
        let made = self.make_gpu_instance(profile, placement);
        let may_stand = match &made {
            Ok(()) => true,
            Err(Cause::Nvml(error)) => error.may_have_worked(),
            Err(_) => false,
        };
        if may_stand {
            self.history.did(Effect::GpuInstance {
                profile,
                name: name.clone(),
                placement,
            });
        } else {
            self.shared.node_record.remove(|other| *other == created)?;
        }
        made
    }

    pub(super) fn create_compute_instance(
        &mut self,
        instance: Placement,
        compute: ComputeChoice,
    ) -> Result<(), Cause> {
        let parent = self.instances.get(&instance).ok_or(Cause::NoInstance)?;
        let (id, profile) = (parent.id, parent.profile);
        let offered = self.offered(profile, id)?;
        // In a GPU instance that mig-mps did not make, only the compute instance is ours.
        let whole = self.created(profile, instance, None);
        let note = |at| Created {
            compute: Some(at),
            ..whole.clone()
        };
        let is_alone_ours = !self.made.contains(&instance);
        let expected = is_alone_ours
            .then(|| expected_placement(compute, &offered))
            .flatten()
            .map(note);
        if let Some(created) = &expected {
            self.shared.node_record.add(created.clone())?;
        }
        let made = self.make_compute_instance(instance, compute, &offered);
        let (at, may_stand) = match &made {
            Ok(made) => (Some(made.placement), true),
            Err(Cause::Nvml(error)) => (None, error.may_have_worked()),
            Err(_) => (None, false),
        };
        if may_stand {
            self.history.did(Effect::ComputeInstance {
                instance,
                compute: at,
            });
        }
        let actual = at.filter(|_| is_alone_ours).map(note);
        if expected != actual && (at.is_some() || !may_stand) {
            // Its placement differs from the expected one, or it was not made.
            self.shared
                .node_record
                .remove(|other| expected.as_ref() == Some(other))?;
            if let Some(created) = actual {
                self.shared.node_record.add(created)?;
            }
        }
        made.map(drop)
    }

    pub(super) fn destroy_gpu_instance(
        &mut self,
        profile: ProfileId,
        name: &ProfileName,
        placement: Placement,
    ) -> Result<(), Cause> {
        if !self.instances.contains_key(&placement) {
            return Ok(());
        }
        self.shared.journal.taking(Taken {
            gpu: self.plan.uuid.clone(),
            profile,
            name: name.to_string(),
            placement,
        })?;
        self.unmake_gpu_instance(placement)?;
        let created = self.created(profile, placement, None);
        self.history.did(Effect::GpuInstanceGone {
            profile,
            name: name.clone(),
            placement,
            ours: self.shared.node_record.has(&created),
        });
        Ok(self.forget(placement)?)
    }

    pub(super) fn destroy_compute_instance(
        &mut self,
        instance: Placement,
        compute: Placement,
    ) -> Result<(), Cause> {
        let Some((gpu_instance, reading)) = self.find(instance, compute) else {
            return Ok(());
        };
        self.unmake_compute_instance(instance, compute)?;
        let created = self.created(gpu_instance, instance, Some(compute));
        self.history.did(Effect::ComputeInstanceGone {
            instance,
            profile: reading.profile,
            compute,
            ours: self.shared.node_record.has(&created),
        });
        Ok(self.shared.node_record.remove(|other| *other == created)?)
    }

    pub(super) fn created(
        &self,
        profile: ProfileId,
        placement: Placement,
        compute: Option<Placement>,
    ) -> Created {
        Created {
            gpu: self.plan.uuid.clone(),
            profile,
            placement,
            compute,
        }
    }

    /// Removes a GPU instance and what is in it from the record.
    pub(super) fn forget(&self, placement: Placement) -> std::io::Result<()> {
        self.shared
            .node_record
            .remove(|created| created.gpu == self.plan.uuid && created.placement == placement)
    }

    /// Makes a GPU instance and tracks it.
    pub(super) fn make_gpu_instance(
        &mut self,
        profile: ProfileId,
        placement: Placement,
    ) -> Result<(), Cause> {
        let gpu = self.plan.uuid.clone();
        let id = self.in_use(&gpu, move |nvml, gpu| {
            nvml.create_gpu_instance(gpu, profile, placement)
        })?;
        self.made.insert(placement);
        self.instances.insert(
            placement,
            GpuInstanceReading {
                id,
                profile,
                placement,
                compute: Vec::new(),
                offered: Vec::new(),
            },
        );
        Ok(())
    }

    pub(super) fn make_compute_instance(
        &mut self,
        instance: Placement,
        choice: ComputeChoice,
        offered: &[ComputeInstanceProfile],
    ) -> Result<ComputeInstanceReading, Cause> {
        let parent = self.instances.get(&instance).ok_or(Cause::NoInstance)?;
        let id = parent.id;
        let (profile, at) = choice.among(offered).ok_or_else(|| Cause::NotOffered {
            choice,
            offered: offered.to_vec(),
        })?;
        let gpu = self.plan.uuid.clone();
        let made = self.in_use(&gpu, move |nvml, gpu| {
            nvml.create_compute_instance(gpu, id, profile, at)
        })?;
        if let Some(parent) = self.instances.get_mut(&instance) {
            parent.compute.push(made.clone());
            parent.compute.sort_by_key(|compute| compute.placement);
        }
        Ok(made)
    }

    pub(super) fn unmake_gpu_instance(&mut self, placement: Placement) -> Result<(), Cause> {
        let Some(reading) = self.instances.get(&placement) else {
            return Ok(());
        };
        let id = reading.id;
        let gpu = self.plan.uuid.clone();
        self.in_use(&gpu, move |nvml, gpu| nvml.destroy_gpu_instance(gpu, id))?;
        self.instances.remove(&placement);
        self.made.remove(&placement);
        Ok(())
    }

    pub(super) fn unmake_compute_instance(
        &mut self,
        instance: Placement,
        compute: Placement,
    ) -> Result<(), Cause> {
        let Some((_, reading)) = self.find(instance, compute) else {
            return Ok(());
        };
        let Some(parent) = self.instances.get(&instance) else {
            return Ok(());
        };
        let (parent, id) = (parent.id, reading.id);
        self.in_use(&reading.uuid, move |nvml, gpu| {
            nvml.destroy_compute_instance(gpu, parent, id)
        })?;
        if let Some(parent) = self.instances.get_mut(&instance) {
            parent.compute.retain(|other| other.placement != compute);
        }
        Ok(())
    }

    /// Returns the compute instance profiles that a GPU instance offers. Asks once for each profile.
    pub(super) fn offered(
        &mut self,
        profile: ProfileId,
        instance: GpuInstanceId,
    ) -> Result<Vec<ComputeInstanceProfile>, Cause> {
        let known = self
            .instances
            .values()
            .find(|standing| standing.profile == profile && !standing.offered.is_empty());
        if let Some(known) = known {
            return Ok(known.offered.clone());
        }
        let gpu = self.plan.uuid.clone();
        let offered = self
            .shared
            .nvml
            .supervise(move |nvml| nvml.offered(&gpu, instance))?;
        for standing in self.instances.values_mut() {
            if standing.id == instance {
                standing.offered.clone_from(&offered);
            }
        }
        Ok(offered)
    }

    /// Reads the instances from the hardware again, after a call with an unknown outcome.
    pub(super) fn reread_instances(&mut self) -> Result<(), Cause> {
        let gpu = self.plan.uuid.clone();
        let profiles = self.gpu.map(|gpu| gpu.profiles.clone()).unwrap_or_default();
        let instances = self
            .shared
            .nvml
            .supervise(move |nvml| nvml.read_instances(&gpu, &profiles))?;
        self.instances = instances
            .into_iter()
            .map(|instance| (instance.placement, instance))
            .collect();
        Ok(())
    }

    /// Returns an existing compute instance, and the profile of its GPU instance.
    pub(super) fn find(
        &self,
        instance: Placement,
        compute: Placement,
    ) -> Option<(ProfileId, ComputeInstanceReading)> {
        let parent = self.instances.get(&instance)?;
        let mut parts = parent.compute.iter();
        let found = parts.find(|found| found.placement == compute)?;
        Some((parent.profile, found.clone()))
    }

    /// Makes a call about the GPU, and retries it while the driver reports it in use. The error names the
    /// processes that use `device`.
    fn in_use<T: Send + 'static>(
        &self,
        device: &str,
        call: impl Fn(&Session, &str) -> Result<T, NvmlError> + Clone + Send + 'static,
    ) -> Result<T, Cause> {
        let nvml = self.shared.nvml;
        let answer = retry::while_in_use(self.interrupt(), || {
            let (gpu, call) = (self.plan.uuid.clone(), call.clone());
            nvml.supervise(move |nvml| call(nvml, &gpu))
        });
        answer.map_err(|error| match error.code() {
            Some(Code::IN_USE) if self.is_interrupted() => Cause::Interrupted,
            Some(Code::IN_USE) => Cause::InUse {
                error,
                holders: self.shared.holders_of(self.gpu, device),
            },
            _ => Cause::Nvml(error),
        })
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt().is_some_and(Interrupt::is_asked)
    }
}

/// The placement that a compute instance will get, if it is known beforehand.
fn expected_placement(
    choice: ComputeChoice,
    offered: &[ComputeInstanceProfile],
) -> Option<Placement> {
    let (id, at) = choice.among(offered)?;
    let chosen = offered.iter().find(|offer| offer.id == id)?;
    match chosen.placements.as_slice() {
        [only] => Some(*only),
        _ => at,
    }
}
