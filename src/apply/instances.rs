use super::Cause;
use super::done::Done;
use super::gpu::GpuRun;
use crate::geometry::{ComputeChoice, ComputeInstanceProfile, Placement, ProfileId, ProfileName};
use crate::state::{Created, Taken};

impl GpuRun<'_> {
    pub(super) fn create_gpu_instance(
        &mut self,
        profile: ProfileId,
        name: &ProfileName,
        placement: Placement,
    ) -> Result<(), Cause> {
        let created = self.created(profile, placement, None);
        // Noted before it is made: what a crash leaves is then known as ours.
        self.shared.ledger.add(created.clone())?;
        let made = self.make_gpu_instance(profile, placement);
        let may_stand = match &made {
            Ok(()) => true,
            Err(Cause::Nvml(error)) => error.may_have_worked(),
            Err(_) => false,
        };
        if may_stand {
            self.history.did(Done::GpuInstance {
                profile,
                name: name.clone(),
                placement,
            });
        } else {
            self.shared.ledger.remove(|other| *other == created)?;
        }
        made
    }

    pub(super) fn create_compute_instance(
        &mut self,
        instance: Placement,
        compute: ComputeChoice,
    ) -> Result<(), Cause> {
        let parent = self.standing.get(&instance).ok_or(Cause::NoInstance)?;
        let (id, profile) = (parent.id, parent.profile);
        let offered = self.offered(profile, id)?;
        // Within somebody else's GPU instance only the compute instance is ours.
        let whole = self.created(profile, instance, None);
        let note = |at| Created {
            compute: Some(at),
            ..whole.clone()
        };
        let foreign = !self.made.contains(&instance);
        let noted = foreign
            .then(|| place(compute, &offered))
            .flatten()
            .map(note);
        if let Some(created) = &noted {
            self.shared.ledger.add(created.clone())?;
        }
        let made = self.make_compute_instance(instance, compute, &offered);
        let (at, may_stand) = match &made {
            Ok(made) => (Some(made.placement), true),
            Err(Cause::Nvml(error)) => (None, error.may_have_worked()),
            Err(_) => (None, false),
        };
        if may_stand {
            self.history.did(Done::ComputeInstance {
                instance,
                compute: at,
            });
        }
        let right = at.filter(|_| foreign).map(note);
        if noted != right && (at.is_some() || !may_stand) {
            // It lies elsewhere than was thought, or was not made.
            self.shared
                .ledger
                .remove(|other| noted.as_ref() == Some(other))?;
            if let Some(created) = right {
                self.shared.ledger.add(created)?;
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
        if !self.standing.contains_key(&placement) {
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
        self.history.did(Done::GpuInstanceGone {
            profile,
            name: name.clone(),
            placement,
            ours: self.shared.ledger.has(&created),
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
        self.history.did(Done::ComputeInstanceGone {
            instance,
            profile: reading.profile,
            compute,
            ours: self.shared.ledger.has(&created),
        });
        Ok(self.shared.ledger.remove(|other| *other == created)?)
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

    /// The instance there is not, or no longer, ours.
    pub(super) fn forget(&self, placement: Placement) -> std::io::Result<()> {
        self.shared
            .ledger
            .remove(|created| created.gpu == self.plan.uuid && created.placement == placement)
    }
}

/// Where a compute instance will lie, if that can be told beforehand.
fn place(choice: ComputeChoice, offered: &[ComputeInstanceProfile]) -> Option<Placement> {
    let (id, at) = choice.among(offered)?;
    let chosen = offered.iter().find(|offer| offer.id == id)?;
    match chosen.placements.as_slice() {
        [only] => Some(*only),
        _ => at,
    }
}
