//! The layout of a GPU that meets a request: GPU instances, and which compute instances of each stay or are made.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::action::Place;
use super::device::DevicePlan;
use super::gpu_steps::{ComputeUse, InstanceUse, Layout};
use super::refusal::{self, Refusal};
use super::setting_change::live_changes;
use super::up::Planner;
use crate::geometry::{
    self, ComputeChoice, ComputeInstanceProfile, Disruption, GpuInstanceProfile, Placement,
    Request, Segment, SliceMap,
};
use crate::node::Gpu;
use crate::profile::{Block, DeviceEntry, ProfileError};
use crate::settings::Settings;

/// The devices that a block of the profile wants of one GPU, and what their layout depends on.
pub(super) struct GpuRequest<'a> {
    pub(super) planner: Planner<'a>,
    pub(super) block: &'a Block,
    pub(super) parts: &'a [DeviceEntry],
    pub(super) gpu: &'a Gpu,
    /// The settings of each entry on this GPU; none before `plan`.
    pub(super) settings: Vec<Option<Cow<'a, Settings>>>,
}

impl<'a> GpuRequest<'a> {
    /// Adds the least disruptive way to meet the request.
    pub(super) fn plan_into(mut self, layout: &mut Layout<'a>) -> Result<(), Refusal> {
        let offers = self.choose_profiles()?;
        for (part, offer) in self.parts.iter().zip(&offers) {
            let compute = &part.compute;
            let size = || {
                let size = (self.gpu).instance_size(offer, compute.len(), compute.is_empty());
                let smallest = compute.iter().map(|compute| compute.slices).min();
                size.with_client_limit(self.client_limit(smallest.unwrap_or(offer.slices)))
            };
            let settings = part.settings.as_ref();
            self.settings
                .push(settings.map(|settings| settings.for_device_size(size)));
        }
        let requests = self.build_requests(&offers)?;
        let standing = InstanceUse::all_on_gpu(self.planner.node, self.planner.run_dir, self.gpu);
        let bodies: Vec<geometry::Existing> = standing
            .iter()
            .map(|standing| geometry::Existing {
                profile: standing.instance.profile,
                placement: standing.instance.placement,
                disruption: standing.disruption(),
            })
            .collect();
        let arrangement =
            geometry::arrange(&self.free_profiles(), &bodies, &requests, &|entry, nth| {
                self.best_compute_layout(&standing[nth], offers[entry], entry)
                    .disruption
            })
            .ok_or_else(|| refusal::no_arrangement(&self, &requests))?;
        let entries = requests.iter().map(|request| request.entry);
        let mut wanted: Vec<(Placement, usize)> =
            arrangement.placements.into_iter().zip(entries).collect();
        wanted.sort_unstable();
        self.add_to_layout(layout, &offers, &standing, &wanted);
        Ok(())
    }

    /// The profiles of the GPU with the placements that virtual machines leave.
    pub(super) fn free_profiles(&self) -> Vec<GpuInstanceProfile> {
        let machines = self.planner.node.virtual_machine_instances(self.gpu);
        let mut profiles = self.gpu.profiles.clone();
        for profile in &mut profiles {
            let places = &mut profile.placements;
            places.retain(|place| !machines.iter().any(|one| one.placement.overlaps(*place)));
        }
        profiles
    }

    /// The profile that each entry means on this GPU.
    fn choose_profiles(&self) -> Result<Vec<&'a GpuInstanceProfile>, ProfileError> {
        let mut offers = Vec::new();
        let mut mistakes = Vec::new();
        for part in self.parts {
            match self.choose_profile(part) {
                Ok(offer) => offers.push(offer),
                Err(mistake) => mistakes.push(mistake),
            }
        }
        ProfileError::from_errors(mistakes).map_or(Ok(offers), Err)
    }

    fn choose_profile(&self, part: &DeviceEntry) -> Result<&'a GpuInstanceProfile, ProfileError> {
        let (gpu, profile) = (self.gpu, self.planner.profile);
        let offered = gpu.profiles.iter().map(|offer| (&offer.name, offer));
        let offer = part
            .profile
            .find_among(offered)
            .ok_or_else(|| refusal::unknown_profile(profile, gpu, part))?;
        if let Some(at) = part.at {
            refusal::check_start(profile, gpu, part, offer, at)?;
        }
        Ok(offer)
    }

    fn build_requests(&self, offers: &[&GpuInstanceProfile]) -> Result<Vec<Request>, Refusal> {
        let mut requests = Vec::new();
        for (entry, (part, offer)) in self.parts.iter().zip(offers).enumerate() {
            if part.count > offer.most {
                // Nobody wants a billion requests listed.
                return Err(refusal::too_many(self, &requests, offer, part.count));
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

    /// Returns the least disruptive compute instances for an entry in an existing GPU instance.
    fn best_compute_layout(
        &self,
        standing: &InstanceUse<'a>,
        offer: &GpuInstanceProfile,
        entry: usize,
    ) -> ComputeLayout {
        let wanted = self.wanted_slices(entry);
        let count = standing.parts.len();
        let subsets = 0_u32..1 << count.min(16);
        let layouts = subsets.filter_map(|subset| {
            let kept: Vec<usize> = (0..count).filter(|nth| subset & 1 << nth != 0).collect();
            let created = instances_to_create(standing, &kept, &wanted, offer.multiprocessors)?;
            Some(self.compute_layout_keeping(standing, entry, &kept, created))
        });
        // It is always possible to destroy every one.
        layouts
            .min_by_key(|layout| layout.disruption)
            .unwrap_or_default()
    }

    /// The layout in which these existing compute instances stay, and others are created.
    fn compute_layout_keeping(
        &self,
        standing: &InstanceUse<'a>,
        entry: usize,
        kept: &[usize],
        created: Vec<ComputeChoice>,
    ) -> ComputeLayout {
        let mut starts: Vec<u32> = kept
            .iter()
            .map(|&part| standing.parts[part].compute.placement.start)
            .collect();
        starts.extend(created.iter().filter_map(|choice| match choice {
            ComputeChoice::Slices { at, .. } => *at,
            _ => None,
        }));
        starts.sort_unstable();
        let mut layout = ComputeLayout {
            created,
            ..ComputeLayout::default()
        };
        for (position, part) in standing.parts.iter().enumerate() {
            let disruption = if kept.contains(&position) {
                let nth = starts.partition_point(|start| *start < part.compute.placement.start);
                layout.kept.insert(nth, position);
                self.disruption_of_kept_instance(part, standing.instance.placement, entry, nth)
            } else {
                layout.destroyed.push(position);
                part.disruption
            };
            layout.disruption = layout.disruption + disruption;
        }
        layout
    }

    /// The disruption of an existing compute instance that becomes the nth of an entry's GPU instance.
    fn disruption_of_kept_instance(
        &self,
        part: &ComputeUse<'a>,
        placement: Placement,
        entry: usize,
        nth: usize,
    ) -> Disruption {
        let device = self.plan_device(entry, placement, nth, Some(part));
        match part.served {
            Some(served) if device.difference_needing_restart(served).is_some() => part.restart,
            Some(served) => Disruption {
                changes: device.settings.map_or(0, |settings| {
                    u32::from(!live_changes(served, &settings).is_empty())
                }),
                ..Disruption::NONE
            },
            None => Disruption::NONE,
        }
    }

    /// Returns the most clients of a device with so many compute slices.
    fn client_limit(&self, slices: u32) -> Option<u32> {
        let program = self.planner.node.control_program();
        self.gpu.client_limit(program, Some(slices))
    }

    fn wanted_slices(&self, entry: usize) -> Vec<u32> {
        self.parts[entry]
            .compute
            .iter()
            .map(|compute| compute.slices)
            .collect()
    }

    /// The nth device of a GPU instance that an entry gets, on this existing compute instance.
    fn plan_device(
        &self,
        entry: usize,
        placement: Placement,
        nth: usize,
        existing: Option<&ComputeUse<'a>>,
    ) -> DevicePlan {
        let part = &self.parts[entry];
        let (name, span) = part.name.clone().unwrap_or_else(|| {
            let of = part.compute.len();
            (self.gpu.default_name(placement, nth, of), self.block.span)
        });
        let device = existing.and_then(|existing| existing.device);
        DevicePlan {
            place: Place::Mig { placement, nth },
            joint: Vec::new(),
            profile: None,
            multiprocessors: None,
            memory_mib: None,
            client_limit: None,
            name,
            settings: self.settings[entry].as_deref().cloned(),
            gpu: self.gpu.index,
            entry,
            span,
            uuid: device.map(|device| device.uuid.clone()),
        }
    }

    fn add_to_layout(
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
                standing.instance.placement == placement && standing.instance.profile == offer.id
            });
            let compute = match stays {
                Some(standing) => self.best_compute_layout(standing, offer, entry),
                None => ComputeLayout {
                    created: new_compute_instances(&self.wanted_slices(entry)),
                    ..ComputeLayout::default()
                },
            };
            if let Some(standing) = stays {
                kept.push(placement);
                let because = "its GPU instance is to be shared otherwise";
                let destroyed = compute.destroyed.iter().copied();
                layout.add_compute_destroy_steps(standing, destroyed, because);
            }
            layout.add_create_steps(offer, placement, stays.is_some(), &compute.created);
            let mut created = compute.created;
            created.sort_by_key(|choice| match choice {
                ComputeChoice::Slices { at, .. } => *at,
                _ => None,
            });
            let mut created = created.into_iter();
            for nth in 0..self.parts[entry].compute.len().max(1) {
                let existing = stays
                    .zip(compute.kept.get(&nth))
                    .map(|(standing, part)| (standing.instance, &standing.parts[*part]));
                let (profile, multiprocessors) = match existing {
                    Some((instance, part)) => {
                        let sms = part.compute.multiprocessors;
                        let title = self.gpu.instance_title(instance, Some(part.compute));
                        (title, Some(sms))
                    }
                    None => describe_new_device(offer, created.next()),
                };
                let compute = self.parts[entry].compute.get(nth);
                let slices = compute.map_or(offer.slices, |compute| compute.slices);
                layout.devices.push(DevicePlan {
                    profile: Some(profile),
                    multiprocessors,
                    memory_mib: Some(offer.memory_mib),
                    client_limit: self.client_limit(slices),
                    ..self.plan_device(entry, placement, nth, existing.map(|(_, part)| part))
                });
            }
        }
        let after = self.map_afterwards(offers, wanted);
        for standing in standing {
            if !kept.contains(&standing.instance.placement) {
                let because = Self::reason_to_destroy(standing, &after);
                layout.add_destroy_steps(standing, &because);
            }
        }
        layout.plan.after = after;
    }

    fn map_afterwards(
        &self,
        offers: &[&GpuInstanceProfile],
        wanted: &[(Placement, usize)],
    ) -> SliceMap {
        let segments = wanted.iter().map(|&(placement, entry)| Segment {
            placement,
            label: offers[entry].name.to_string(),
        });
        let machines = self.planner.node.virtual_machine_instances(self.gpu);
        let segments = segments.chain(self.gpu.segments_of(&machines));
        SliceMap::new(self.gpu.placement_units(), segments.collect())
    }

    fn reason_to_destroy(standing: &InstanceUse<'_>, after: &SliceMap) -> String {
        let instead = after
            .segments()
            .iter()
            .find(|next| next.placement.overlaps(standing.instance.placement));
        match instead {
            Some(next) => format!("{} at {} needs this space", next.label, next.placement),
            None if standing.parts.is_empty() => {
                "left without a compute instance, and not in the profile".to_owned()
            }
            None => "not in the profile".to_owned(),
        }
    }
}

/// The changes to the compute instances of a GPU instance that stays.
#[derive(Default)]
struct ComputeLayout {
    /// The existing ones that stay, by their positions afterwards.
    kept: BTreeMap<usize, usize>,
    /// The existing ones that are destroyed.
    destroyed: Vec<usize>,
    /// The new ones, in order.
    created: Vec<ComputeChoice>,
    /// The disruption that this causes.
    disruption: Disruption,
}

/// The compute instances of a new GPU instance: large ones first, so that the driver finds a place for
/// each.
fn new_compute_instances(wanted: &[u32]) -> Vec<ComputeChoice> {
    let mut sizes = wanted.to_vec();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    match sizes.as_slice() {
        [] => vec![ComputeChoice::Full],
        sizes => sizes
            .iter()
            .map(|&count| ComputeChoice::Slices { count, at: None })
            .collect(),
    }
}

/// Returns the compute instances to create beside the kept ones: those of the wanted slices, or the one with all SMs,
/// `full`, if `wanted` is empty. Returns `None` if the kept ones cannot stay.
fn instances_to_create(
    standing: &InstanceUse<'_>,
    kept: &[usize],
    wanted: &[u32],
    full: Option<u32>,
) -> Option<Vec<ComputeChoice>> {
    let parts = &standing.parts;
    if kept.is_empty() {
        return Some(new_compute_instances(wanted));
    }
    if wanted.is_empty() {
        let is_full = kept.len() == 1 && Some(parts[kept[0]].compute.multiprocessors) == full;
        return is_full.then(Vec::new);
    }
    let mut missing = wanted.to_vec();
    let mut taken = Vec::new();
    for &nth in kept {
        let compute = parts[nth].compute;
        // The one with all SMs can have as many slices as the plain one.
        let plain = plain_profile(&standing.instance.offered, compute.slices);
        if plain.is_some_and(|plain| plain.id != compute.profile) {
            return None;
        }
        let position = missing
            .iter()
            .position(|wanted| *wanted == compute.slices)?;
        missing.swap_remove(position);
        taken.push(compute.placement);
    }
    missing.sort_unstable_by(|a, b| b.cmp(a));
    place_missing(&standing.instance.offered, &taken, &missing)
}

/// Places for what is missing beside what is taken, largest first; `None` where there are none, or where the driver does not
/// tell which there are.
fn place_missing(
    offered: &[ComputeInstanceProfile],
    taken: &[Placement],
    missing: &[u32],
) -> Option<Vec<ComputeChoice>> {
    let Some((&count, others)) = missing.split_first() else {
        return Some(Vec::new());
    };
    plain_profile(offered, count)?
        .placements
        .iter()
        .filter(|place| !taken.iter().any(|other| other.overlaps(**place)))
        .find_map(|&place| {
            let beside = place_missing(offered, &[taken, &[place]].concat(), others)?;
            let at = Some(place.start);
            Some([vec![ComputeChoice::Slices { count, at }], beside].concat())
        })
}

/// The profile of so many slices that `create_compute_instance` takes.
fn plain_profile(
    offered: &[ComputeInstanceProfile],
    slices: u32,
) -> Option<&ComputeInstanceProfile> {
    offered
        .iter()
        .filter(|profile| profile.slices == slices)
        .min_by_key(|profile| profile.id)
}

/// Returns the name and the SMs of a device whose compute instance is to be made.
fn describe_new_device(
    offer: &GpuInstanceProfile,
    choice: Option<ComputeChoice>,
) -> (String, Option<u32>) {
    match choice {
        // The driver tells its SMs when it is there.
        Some(ComputeChoice::Slices { count, .. }) => (format!("{count}c.{}", offer.name), None),
        _ => (offer.name.to_string(), offer.multiprocessors),
    }
}
