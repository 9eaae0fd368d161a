//! What stands on a GPU, and the calls that change it.

use super::gpu::GpuRun;
use super::{Cause, retry};
use crate::geometry::{ComputeChoice, ComputeInstanceProfile, GpuInstanceId, Placement, ProfileId};
use crate::host::Interrupt;
use crate::nvml::{Code, ComputeInstanceReading, GpuInstanceReading, NvmlError, Session};

impl GpuRun<'_> {
    /// Makes a GPU instance and remembers where it stands.
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
        self.standing.insert(
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
        let parent = self.standing.get(&instance).ok_or(Cause::NoInstance)?;
        let id = parent.id;
        let (profile, at) = choice.among(offered).ok_or_else(|| Cause::NotOffered {
            choice,
            offered: offered.to_vec(),
        })?;
        let gpu = self.plan.uuid.clone();
        let made = self.in_use(&gpu, move |nvml, gpu| {
            nvml.create_compute_instance(gpu, id, profile, at)
        })?;
        if let Some(parent) = self.standing.get_mut(&instance) {
            parent.compute.push(made.clone());
            parent.compute.sort_by_key(|compute| compute.placement);
        }
        Ok(made)
    }

    pub(super) fn unmake_gpu_instance(&mut self, placement: Placement) -> Result<(), Cause> {
        let Some(reading) = self.standing.get(&placement) else {
            return Ok(());
        };
        let id = reading.id;
        let gpu = self.plan.uuid.clone();
        self.in_use(&gpu, move |nvml, gpu| nvml.destroy_gpu_instance(gpu, id))?;
        self.standing.remove(&placement);
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
        let Some(parent) = self.standing.get(&instance) else {
            return Ok(());
        };
        let (parent, id) = (parent.id, reading.id);
        self.in_use(&reading.uuid, move |nvml, gpu| {
            nvml.destroy_compute_instance(gpu, parent, id)
        })?;
        if let Some(parent) = self.standing.get_mut(&instance) {
            parent.compute.retain(|other| other.placement != compute);
        }
        Ok(())
    }

    /// What compute instances a GPU instance offers: asked once for each profile.
    pub(super) fn offered(
        &mut self,
        profile: ProfileId,
        instance: GpuInstanceId,
    ) -> Result<Vec<ComputeInstanceProfile>, Cause> {
        let known = self
            .standing
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
        for standing in self.standing.values_mut() {
            if standing.id == instance {
                standing.offered.clone_from(&offered);
            }
        }
        Ok(offered)
    }

    /// Reads what stands from the hardware, where a call's outcome is not known.
    pub(super) fn look_again(&mut self) -> Result<(), Cause> {
        let gpu = self.plan.uuid.clone();
        let profiles = self.gpu.map(|gpu| gpu.profiles.clone()).unwrap_or_default();
        let instances = self
            .shared
            .nvml
            .supervise(move |nvml| nvml.read_instances(&gpu, &profiles))?;
        self.standing = instances
            .into_iter()
            .map(|instance| (instance.placement, instance))
            .collect();
        Ok(())
    }

    /// A compute instance that stands, and its GPU instance's profile.
    pub(super) fn find(
        &self,
        instance: Placement,
        compute: Placement,
    ) -> Option<(ProfileId, ComputeInstanceReading)> {
        let parent = self.standing.get(&instance)?;
        let mut parts = parent.compute.iter();
        let found = parts.find(|found| found.placement == compute)?;
        Some((parent.profile, found.clone()))
    }

    /// Makes a call about the GPU, again while the driver says that something is in use; then names
    /// who uses the `device`.
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
