//! The layout of a GPU that meets a request.

use super::action::Place;
use super::compute::{self, ComputeLayout};
use super::gpu_request::GpuRequest;
use super::infeasible;
use super::instance_use::{ComputeUse, InstanceUse, is_made_by_us};
use super::layout::Layout;
use super::refusal::Refusal;
use super::slot::Slot;
use crate::geometry::{
    self, Disruption, GpuInstanceProfile, Placement, Request, Segment, SliceMap,
};
use crate::profile::{DeviceEntry, ProfileError};

impl<'a> GpuRequest<'a> {
    /// Adds the least disruptive way to meet the request.
    pub(super) fn plan(&self, layout: &mut Layout<'a>) -> Result<(), Refusal> {
        let offers = self.offers()?;
        let requests = self.requests(&offers)?;
        let standing = InstanceUse::all(self.planner.node, self.planner.run_dir, self.gpu);
        let keeping = |entry: usize, nth: usize| {
            self.compute(&standing[nth], offers[entry], entry)
                .disruption
        };
        let bodies: Vec<geometry::Existing> = standing
            .iter()
            .map(|standing| geometry::Existing {
                profile: standing.instance.profile,
                placement: standing.placement(),
                disruption: standing.disruption(),
            })
            .collect();
        let arrangement = geometry::arrange(&self.gpu.profiles, &bodies, &requests, &keeping)
            .ok_or_else(|| infeasible::refusal(self, &requests))?;
        let entries = requests.iter().map(|request| request.entry);
        let mut wanted: Vec<(Placement, usize)> =
            arrangement.placements.into_iter().zip(entries).collect();
        wanted.sort_unstable();
        self.carry_out(layout, &offers, &standing, &wanted);
        Ok(())
    }

    /// The profile that each entry means on this GPU.
    fn offers(&self) -> Result<Vec<&'a GpuInstanceProfile>, ProfileError> {
        let mut offers = Vec::new();
        let mut mistakes = Vec::new();
        for part in self.parts {
            match self.offer(part) {
                Ok(offer) => offers.push(offer),
                Err(mistake) => mistakes.push(mistake),
            }
        }
        ProfileError::all(mistakes).map_or(Ok(offers), Err)
    }

    fn offer(&self, part: &DeviceEntry) -> Result<&'a GpuInstanceProfile, ProfileError> {
        let (gpu, profile) = (self.gpu, self.planner.profile);
        let offered = gpu.profiles.iter().map(|offer| (&offer.name, offer));
        let offer = part.profile.choose(offered);
        let offer = offer.ok_or_else(|| infeasible::unknown_profile(profile, gpu, part))?;
        if let Some(at) = part.at {
            infeasible::check_start(profile, gpu, part, offer, at)?;
        }
        Ok(offer)
    }

    fn requests(&self, offers: &[&GpuInstanceProfile]) -> Result<Vec<Request>, Refusal> {
        let mut requests = Vec::new();
        for (entry, (part, offer)) in self.parts.iter().zip(offers).enumerate() {
            if part.count > offer.most {
                // Nobody wants a billion requests listed.
                return Err(infeasible::too_many(self, &requests, offer, part.count));
            }
            let request = Request {
                profile: offer.id,
                at: part.at,
                entry,
            };
            requests.extend(std::iter::repeat_n(request, part.count as usize));
        }
        Ok(requests)
    }

    /// Lays out the compute instances of a GPU instance that an entry keeps.
    fn compute(
        &self,
        standing: &InstanceUse<'a>,
        offer: &GpuInstanceProfile,
        entry: usize,
    ) -> ComputeLayout {
        let staying = |part: usize, nth: usize| {
            let part = &standing.parts[part];
            let slot = self.slot(entry, standing.placement(), nth, Some(part));
            match part.served {
                Some(served) if slot.difference(served).is_some() => part.restart,
                Some(served) if slot.changes(served).is_empty() => Disruption::NONE,
                Some(_) => Disruption {
                    changes: 1,
                    ..Disruption::NONE
                },
                None => Disruption::NONE,
            }
        };
        let wanted = self.slices(entry);
        compute::layout(standing, &wanted, offer.multiprocessors, &staying)
    }

    fn slices(&self, entry: usize) -> Vec<u32> {
        let compute = self.parts[entry].compute.iter();
        compute.map(|compute| compute.slices).collect()
    }

    /// The nth device of a GPU instance that an entry gets, on this existing compute instance.
    fn slot(
        &self,
        entry: usize,
        placement: Placement,
        nth: usize,
        existing: Option<&ComputeUse<'a>>,
    ) -> Slot<'a> {
        let part = &self.parts[entry];
        let (name, span) = part.name.clone().unwrap_or_else(|| {
            let of = part.compute.len();
            (self.gpu.default_name(placement, nth, of), self.block.span)
        });
        Slot {
            gpu: self.gpu.index,
            entry,
            place: Place::Mig { placement, nth },
            name,
            span,
            settings: part.settings.as_ref(),
            device: existing.map(|existing| existing.compute.uuid.as_str()),
            served: existing.and_then(|existing| existing.served),
        }
    }

    fn carry_out(
        &self,
        layout: &mut Layout<'a>,
        offers: &[&GpuInstanceProfile],
        standing: &[InstanceUse<'a>],
        wanted: &[(Placement, usize)],
    ) {
        let mut kept = Vec::new();
        for &(placement, entry) in wanted {
            let offer = offers[entry];
            let stays = standing.iter().find(|standing| {
                standing.placement() == placement && standing.instance.profile == offer.id
            });
            let compute = match stays {
                Some(standing) => self.compute(standing, offer, entry),
                None => ComputeLayout {
                    created: compute::fresh(&self.slices(entry)),
                    ..ComputeLayout::default()
                },
            };
            if let Some(standing) = stays {
                kept.push(placement);
                let because = "its GPU instance is to be shared otherwise";
                layout.destroy_compute(standing, compute.destroyed.iter().copied(), because);
            }
            layout.build(offer, placement, stays.is_some(), &compute.created);
            for nth in 0..self.parts[entry].compute.len().max(1) {
                let existing = compute.kept.iter().find(|(_, number)| *number == nth);
                let existing = existing.zip(stays);
                let existing = existing.map(|(&(index, _), standing)| &standing.parts[index]);
                let slot = self.slot(entry, placement, nth, existing);
                layout.slots.push(slot);
            }
        }
        let segments = wanted.iter().map(|&(placement, entry)| Segment {
            placement,
            label: offers[entry].name.to_string(),
        });
        layout.after = SliceMap::new(self.gpu.units(), segments.collect());
        for standing in standing {
            if !kept.contains(&standing.placement()) {
                let because = self.reason_to_destroy(standing, &layout.after);
                layout.destroy(standing, &because);
            }
        }
        // The large ones first; a device can be used as soon as it is there.
        layout
            .builds
            .sort_by_key(|build| (std::cmp::Reverse(build.placement.size), build.placement));
    }

    fn reason_to_destroy(&self, standing: &InstanceUse<'_>, after: &SliceMap) -> String {
        let mut segments = after.segments().iter();
        let instead = segments.find(|next| next.placement.overlaps(standing.placement()));
        let because = match instead {
            Some(next) => format!("{} at {} needs its place", next.label, next.placement),
            None if standing.parts.is_empty() => {
                "left without a compute instance, and not in the profile".to_owned()
            }
            None => "not in the profile".to_owned(),
        };
        if is_made_by_us(self.planner.node, self.gpu, standing.instance, None) {
            because
        } else {
            format!("{because}; not known to be made by mig-mps")
        }
    }
}
