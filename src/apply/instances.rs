//! GPU and compute instances: `create_` and `destroy_` record what they do, `make_` and `unmake_` only what NVML makes.

use super::cause::Cause;
use super::effect::Effect;
use super::gpu::{GpuRun, by_placement};
use super::retry;
use crate::geometry::{ComputeChoice, ComputeInstanceProfile, Placement, ProfileId};
use crate::host::Interrupt;
use crate::nvml::{Code, ComputeInstanceReading, GpuInstanceReading, NvmlError, Session};
use crate::plan::GpuInstance;
use crate::state::{Created, Taken};

impl GpuRun<'_> {
    pub(super) fn create_gpu_instance(&mut self, instance: &GpuInstance) -> Result<(), Cause> {
        let made = self.make_gpu_instance(instance, true);
        if made.as_ref().err().is_none_or(Cause::may_have_worked) {
            self.history.did(Effect::GpuInstance(instance.clone()));
        }
        made
    }

    pub(super) fn create_compute_instance(
        &mut self,
        instance: Placement,
        compute: ComputeChoice,
    ) -> Result<(), Cause> {
        let parent = self.instances.get(&instance).ok_or(Cause::NoInstance)?;
        // In a GPU instance that mig-mps did not make, only the compute instance is ours.
        let whole = self.created(parent.profile, instance, None);
        let note = |at| Created {
            compute: Some(at),
            ..whole.clone()
        };
        let offered = self.offered(instance)?;
        let is_alone_ours = !self.made.contains(&instance);
        let expected = expected_placement(compute, &offered);
        let expected = expected.filter(|_| is_alone_ours).map(note);
        if let Some(created) = &expected {
            self.shared.node_record.add(created)?;
        }
        let made = self.make_compute_instance(instance, compute, &offered);
        let at = made.as_ref().ok().map(|made| made.placement);
        let may_stand = made.as_ref().err().is_none_or(Cause::may_have_worked);
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
                .remove(|other| expected.as_ref() == Some(other));
            if let Some(created) = actual {
                self.shared.node_record.add(&created)?;
            }
        }
        made.map(drop)
    }

    pub(super) fn destroy_gpu_instance(&mut self, instance: &GpuInstance) -> Result<(), Cause> {
        let (profile, placement) = (instance.profile, instance.placement);
        if !self.instances.contains_key(&placement) {
            return Ok(());
        }
        self.shared.journal.taking(Taken {
            gpu: self.plan.uuid.clone(),
            profile,
            name: instance.name.to_string(),
            placement,
        })?;
        self.unmake_gpu_instance(placement)?;
        let created = self.created(profile, placement, None);
        self.history.did(Effect::GpuInstanceGone {
            instance: instance.clone(),
            ours: self.shared.node_record.has(&created),
        });
        // With what was made in it.
        self.shared
            .node_record
            .remove(|created| created.gpu == self.plan.uuid && created.placement == placement);
        Ok(())
    }

    pub(super) fn destroy_compute_instance(
        &mut self,
        instance: Placement,
        compute: Placement,
    ) -> Result<(), Cause> {
        let Some((parent, part)) = self.find(instance, compute) else {
            return Ok(());
        };
        let created = self.created(parent.profile, instance, Some(compute));
        let profile = part.profile;
        self.unmake_compute_instance(instance, compute)?;
        self.history.did(Effect::ComputeInstanceGone {
            instance,
            profile,
            compute,
            ours: self.shared.node_record.has(&created),
        });
        self.shared.node_record.remove(|other| *other == created);
        Ok(())
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

    /// Makes a GPU instance and tracks it. One of ours is recorded first: what a crash leaves behind is then known as
    /// ours.
    pub(super) fn make_gpu_instance(
        &mut self,
        instance: &GpuInstance,
        is_ours: bool,
    ) -> Result<(), Cause> {
        let (profile, placement) = (instance.profile, instance.placement);
        let created = self.created(profile, placement, None);
        if is_ours {
            self.shared.node_record.add(&created)?;
        }
        let made = self.in_use(&self.plan.uuid, move |nvml, gpu| {
            nvml.create_gpu_instance(gpu, profile, placement)
        });
        match made {
            Ok(id) => {
                self.made.insert(placement);
                let reading = GpuInstanceReading {
                    id,
                    profile,
                    placement,
                    compute: Vec::new(),
                    offered: Vec::new(),
                };
                self.instances.insert(placement, reading);
                Ok(())
            }
            Err(cause) => {
                if !cause.may_have_worked() {
                    self.shared.node_record.remove(|other| *other == created);
                }
                Err(cause)
            }
        }
    }

    pub(super) fn make_compute_instance(
        &mut self,
        instance: Placement,
        choice: ComputeChoice,
        offered: &[ComputeInstanceProfile],
    ) -> Result<ComputeInstanceReading, Cause> {
        let parent = self.instances.get(&instance).ok_or(Cause::NoInstance)?;
        let id = parent.id;
        let (profile, at) = choice.among(offered).ok_or_else(|| {
            let offer = |offer: &ComputeInstanceProfile| {
                format!("{}c (profile {})", offer.slices, offer.id)
            };
            let offers: Vec<String> = offered.iter().map(offer).collect();
            let offers = offers.join(", ");
            Cause::Other(format!(
                "the GPU instance offers {offers}, and nothing for {choice:?}"
            ))
        })?;
        let made = self.in_use(&self.plan.uuid, move |nvml, gpu| {
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
        self.in_use(&self.plan.uuid, move |nvml, gpu| {
            nvml.destroy_gpu_instance(gpu, id)
        })?;
        self.instances.remove(&placement);
        self.made.remove(&placement);
        Ok(())
    }

    pub(super) fn unmake_compute_instance(
        &mut self,
        instance: Placement,
        compute: Placement,
    ) -> Result<(), Cause> {
        let Some((parent, part)) = self.find(instance, compute) else {
            return Ok(());
        };
        let (parent, id) = (parent.id, part.id);
        self.in_use(&part.uuid, move |nvml, gpu| {
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
        instance: Placement,
    ) -> Result<Vec<ComputeInstanceProfile>, Cause> {
        let asked = self.instances.get(&instance).ok_or(Cause::NoInstance)?;
        let known = self
            .instances
            .values()
            .find(|standing| standing.profile == asked.profile && !standing.offered.is_empty());
        if let Some(known) = known {
            return Ok(known.offered.clone());
        }
        let id = asked.id;
        let uuid = &self.plan.uuid;
        let offered = self
            .shared
            .nvml_on(uuid, move |nvml, gpu| nvml.offered(gpu, id))?;
        if let Some(asked) = self.instances.get_mut(&instance) {
            asked.offered.clone_from(&offered);
        }
        Ok(offered)
    }

    /// Reads the instances from the hardware again, after a call with an unknown outcome.
    pub(super) fn reread_instances(&mut self) -> Result<(), Cause> {
        let profiles = self.gpu.map(|gpu| gpu.profiles.clone()).unwrap_or_default();
        let instances = self.shared.nvml_on(&self.plan.uuid, move |nvml, gpu| {
            nvml.read_instances(gpu, &profiles)
        })?;
        self.instances = by_placement(instances);
        Ok(())
    }

    /// Returns an existing compute instance after its GPU instance.
    fn find(
        &self,
        instance: Placement,
        compute: Placement,
    ) -> Option<(&GpuInstanceReading, &ComputeInstanceReading)> {
        let parent = self.instances.get(&instance)?;
        let mut parts = parent.compute.iter();
        let found = parts.find(|found| found.placement == compute)?;
        Some((parent, found))
    }

    /// Makes a call about the GPU, and retries it while the driver reports it in use. The error names the
    /// processes that use `device`.
    fn in_use<T: Send + 'static>(
        &self,
        device: &str,
        call: impl Fn(&Session, &str) -> Result<T, NvmlError> + Clone + Send + 'static,
    ) -> Result<T, Cause> {
        let answer = retry::while_in_use(self.interrupt(), || {
            self.shared.nvml_on(&self.plan.uuid, call.clone())
        });
        answer.map_err(|error| match error.code() {
            Some(Code::IN_USE) if self.interrupt().is_some_and(Interrupt::is_asked) => {
                Cause::Interrupted
            }
            Some(Code::IN_USE) => Cause::InUse {
                error,
                holders: self.shared.holders_of(self.gpu, device),
            },
            _ => Cause::Nvml(error),
        })
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
