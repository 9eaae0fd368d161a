//! The layout of one GPU, and the steps that make it.

use super::action::{Action, Step};
use super::compute::ComputeLayout;
use super::instance_use::InstanceUse;
use super::refusal::Obstacle;
use super::slot::Slot;
use crate::geometry::{ComputeChoice, GpuInstanceProfile, Placement, Segment, SliceMap};
use crate::node::Gpu;

/// The wanted layout of a GPU, with the steps to it.
pub(super) struct Layout<'a> {
    /// The instances afterwards.
    pub(super) after: SliceMap,
    /// The steps that destroy: per GPU instance its compute instances, then it.
    pub(super) destroys: Vec<Step>,
    /// The steps that create, by GPU instance.
    pub(super) builds: Vec<Build>,
    /// The devices afterwards.
    pub(super) slots: Vec<Slot<'a>>,
    /// The obstacles to destroying instances.
    pub(super) obstacles: Vec<Obstacle>,
}

/// The steps that create a GPU instance, or compute instances in it.
pub(super) struct Build {
    pub(super) placement: Placement,
    pub(super) steps: Vec<Step>,
}

impl Layout<'_> {
    pub(super) fn build(
        &mut self,
        offer: &GpuInstanceProfile,
        placement: Placement,
        stands: bool,
        compute: &[ComputeChoice],
    ) {
        let mut steps = Vec::new();
        if !stands {
            steps.push(Step {
                action: Action::CreateGpuInstance {
                    profile: offer.id,
                    name: offer.name.clone(),
                    placement,
                },
                because: "the profile asks for it".to_owned(),
            });
        }
        let because = if stands {
            "its GPU instance is there without it"
        } else {
            "the profile asks for it"
        };
        steps.extend(compute.iter().map(|&compute| Step {
            action: Action::CreateComputeInstance {
                instance: placement,
                compute,
            },
            because: because.to_owned(),
        }));
        if !steps.is_empty() {
            self.builds.push(Build { placement, steps });
        }
    }

    /// Adds the steps that destroy compute instances in a GPU instance that stays.
    pub(super) fn change_compute(
        &mut self,
        gpu: &Gpu,
        standing: Option<&InstanceUse<'_>>,
        compute: &ComputeLayout,
    ) {
        let Some(standing) = standing else { return };
        let gone = compute.destroyed.iter().map(|&nth| &standing.parts[nth]);
        self.obstacles
            .extend(gone.filter_map(|part| part.in_the_way(gpu)));
        self.destroys
            .extend(compute.destroyed.iter().map(|&nth| Step {
                action: Action::DestroyComputeInstance {
                    instance: standing.placement(),
                    compute: standing.parts[nth].compute.placement,
                },
                because: "its GPU instance is to be shared otherwise".to_owned(),
            }));
    }

    pub(super) fn destroy(
        &mut self,
        gpu: &Gpu,
        standing: &InstanceUse<'_>,
        places: &[Placement],
        segments: &[Segment],
        is_known: bool,
    ) {
        let placement = standing.placement();
        let instead = places.iter().position(|place| place.overlaps(placement));
        let because = match instead {
            Some(nth) => format!("{} at {} needs its place", segments[nth].label, places[nth]),
            None if standing.parts.is_empty() => {
                "left without a compute instance, and the profile does not ask for it".to_owned()
            }
            None => "the profile does not ask for it".to_owned(),
        };
        let because = if is_known {
            because
        } else {
            format!("{because}; not known to be made by mig-mps")
        };
        self.destroys.extend(dismantle(gpu, standing, &because));
        let gone = standing.parts.iter();
        self.obstacles
            .extend(gone.filter_map(|part| part.in_the_way(gpu)));
    }
}

/// Returns the steps that destroy a GPU instance and what is in it.
pub(super) fn dismantle(gpu: &Gpu, standing: &InstanceUse<'_>, because: &str) -> Vec<Step> {
    let placement = standing.placement();
    // Instances are found profile by profile: there is one.
    let Some(profile) = gpu.profile(standing.instance.profile) else {
        return Vec::new();
    };
    let parts = standing
        .parts
        .iter()
        .map(|part| Action::DestroyComputeInstance {
            instance: placement,
            compute: part.compute.placement,
        });
    let itself = Action::DestroyGpuInstance {
        profile: profile.id,
        name: profile.name.clone(),
        placement,
    };
    parts
        .chain([itself])
        .map(|action| Step {
            action,
            because: because.to_owned(),
        })
        .collect()
}
