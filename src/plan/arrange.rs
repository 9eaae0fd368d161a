//! The layout of a GPU that meets a request.

use super::action::Place;
use super::compute::{self, ComputeLayout};
use super::gpu_request::GpuRequest;
use super::infeasible;
use super::instance_use::InstanceUse;
use super::layout::Layout;
use super::refusal::Refusal;
use super::slot::{self, DaemonSpec, Slot};
use crate::geometry::{
    self, Disruption, GpuInstanceProfile, Placement, Request, Segment, SliceMap,
};
use crate::profile::NameTemplate;
use crate::state::Created;

impl<'a> GpuRequest<'a> {
    /// Returns the least disruptive layout.
    pub(super) fn layout(&self) -> Result<Layout<'a>, Refusal> {
        let offers = self.offers()?;
        let requests = self.requests(&offers)?;
        let standing = InstanceUse::all(self.node, self.run_dir, self.gpu);
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
        let mut wanted: Vec<(Placement, usize)> = arrangement
            .placements
            .iter()
            .zip(&requests)
            .map(|(&placement, request)| (placement, request.entry))
            .collect();
        wanted.sort_unstable();
        Ok(self.carry_out(&offers, &standing, &wanted))
    }

    /// The profile that each entry means on this GPU.
    fn offers(&self) -> Result<Vec<&'a GpuInstanceProfile>, Refusal> {
        let gpu = self.gpu;
        let parts = self.parts.iter();
        parts
            .map(|part| {
                let offered = gpu.profiles.iter().map(|offer| (&offer.name, offer));
                let offer = part
                    .profile
                    .choose(offered)
                    .ok_or_else(|| infeasible::unknown_profile(self.profile, gpu, part))?;
                if let Some(at) = part.at {
                    infeasible::check_start(self.profile, gpu, part, offer, at)?;
                }
                Ok(offer)
            })
            .collect()
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
        standing: &InstanceUse<'_>,
        offer: &GpuInstanceProfile,
        entry: usize,
    ) -> ComputeLayout {
        let wanted = self.slices(entry);
        let of = wanted.len().max(1);
        let staying = |part: usize, nth: usize| {
            let template = self.template(entry, standing.placement(), nth, of);
            let spec = self.spec(entry, &template);
            let part = &standing.parts[part];
            match part.served {
                Some(served) if spec.difference(served).is_some() => part.restart,
                Some(served) if !spec.changes(served).is_empty() => Disruption {
                    changes: 1,
                    ..Disruption::NONE
                },
                _ => Disruption::NONE,
            }
        };
        compute::layout(standing, &wanted, offer.multiprocessors, &staying)
    }

    fn slices(&self, entry: usize) -> Vec<u32> {
        let compute = self.parts[entry].compute.iter();
        compute.map(|compute| compute.slices).collect()
    }

    fn template(&self, entry: usize, placement: Placement, nth: usize, of: usize) -> String {
        match &self.parts[entry].name {
            Some((name, _)) => name.clone(),
            None => slot::default_name(self.gpu, placement, nth, of),
        }
    }

    fn spec<'t>(&self, entry: usize, template: &'t str) -> DaemonSpec<'t>
    where
        'a: 't,
    {
        let settings = &self.parts[entry].settings;
        DaemonSpec {
            gpu: self.gpu.index,
            template: NameTemplate(template),
            serve: slot::serve(settings, self.caller),
            settings,
        }
    }

    fn carry_out(
        &self,
        offers: &[&GpuInstanceProfile],
        standing: &[InstanceUse<'a>],
        wanted: &[(Placement, usize)],
    ) -> Layout<'a> {
        let mut layout = Layout {
            after: SliceMap::new(0, Vec::new()),
            destroys: Vec::new(),
            builds: Vec::new(),
            slots: Vec::new(),
            obstacles: Vec::new(),
        };
        let mut segments = Vec::new();
        let mut kept = Vec::new();
        for &(placement, entry) in wanted {
            let offer = offers[entry];
            segments.push(Segment {
                placement,
                label: offer.name.to_string(),
            });
            let stays = standing.iter().enumerate().find(|(_, standing)| {
                standing.placement() == placement && standing.instance.profile == offer.id
            });
            let (compute, standing) = if let Some((nth, standing)) = stays {
                kept.push(nth);
                (self.compute(standing, offer, entry), Some(standing))
            } else {
                let made = ComputeLayout {
                    created: compute::fresh(&self.slices(entry)),
                    ..ComputeLayout::default()
                };
                (made, None)
            };
            layout.change_compute(self.gpu, standing, &compute);
            layout.build(offer, placement, standing.is_some(), &compute.created);
            self.fill(&mut layout, (placement, entry), standing, &compute);
        }
        let places: Vec<Placement> = wanted.iter().map(|&(placement, _)| placement).collect();
        for (nth, standing) in standing.iter().enumerate() {
            if !kept.contains(&nth) {
                let made = Created {
                    gpu: self.gpu.uuid.clone(),
                    profile: standing.instance.profile,
                    placement: standing.placement(),
                    compute: None,
                };
                let is_known = self.node.created.contains(&made);
                layout.destroy(self.gpu, standing, &places, &segments, is_known);
            }
        }
        layout.after = SliceMap::new(self.gpu.units(), segments);
        // The large ones first; a device can be used as soon as it is there.
        layout
            .builds
            .sort_by_key(|build| (std::cmp::Reverse(build.placement.size), build.placement));
        layout
    }

    /// Adds the devices of one GPU instance.
    fn fill(
        &self,
        layout: &mut Layout<'a>,
        (placement, entry): (Placement, usize),
        standing: Option<&InstanceUse<'a>>,
        compute: &ComputeLayout,
    ) {
        let part = &self.parts[entry];
        let of = part.compute.len().max(1);
        for nth in 0..of {
            let stays = compute.kept.iter().find(|(_, number)| *number == nth);
            let part_there = stays
                .zip(standing)
                .map(|(&(index, _), standing)| &standing.parts[index]);
            layout.slots.push(Slot {
                gpu: self.gpu.index,
                entry,
                place: Place::Mig { placement, nth },
                template: self.template(entry, placement, nth, of),
                span: part
                    .name
                    .as_ref()
                    .map_or(self.block.span, |(_, span)| *span),
                serve: slot::serve(&part.settings, self.caller),
                settings: &part.settings,
                device: part_there.map(|part| part.compute.uuid.as_str()),
                served: part_there.and_then(|part| part.served),
                name: String::new(),
            });
        }
    }
}
