//! The MIG mode and the instances of a GPU.

use std::collections::BTreeSet;

use super::finding::Verdict;
use super::tester::{Checked, ListedGpu, ListedProfile, Tester, ensure};
use crate::geometry::{
    GpuInstanceProfile, Partition, Placement, ProfileEnum, ProfileId, ProfileName, partitions,
};
use crate::host::listed;

/// The difference in percent between the memory of a profile in the catalog and in the driver that is no error: drivers
/// differ by up to 7 %.
const MEMORY_TOLERANCE: u64 = 10;

impl Tester<'_> {
    /// Tests MIG mode, every instance profile, full layouts, compute instances, and programs on MIG devices.
    pub(super) fn test_mig(&mut self) {
        if !self.gpu.tests_mig {
            return;
        }
        let mut offers = Vec::new();
        let is_on = self.check("MIG mode on, without instances", |tester| {
            tester.up("false", "devices = []")?;
            let gpu = tester.listed()?;
            let is_on = gpu.mig.as_ref().is_some_and(|mode| mode.current);
            ensure(is_on, || "MIG mode is off".to_owned())?;
            ensure(gpu.gpu_instances.is_empty(), || {
                "there are instances".to_owned()
            })?;
            ensure(!gpu.profiles.is_empty(), || {
                "the driver offers no profiles".to_owned()
            })?;
            offers = gpu.profiles;
            Ok(None)
        });
        if !is_on {
            return;
        }
        self.compare_with_catalog(&offers);
        for offer in &offers {
            if offer.profile.parse::<ProfileName>().is_err() {
                self.leave_out(&offer.profile, "a profile cannot name it");
                continue;
            }
            let first = offer.placements.first();
            let last = offer.placements.last().filter(|last| Some(*last) != first);
            for at in first
                .into_iter()
                .chain(last.filter(|_| !self.abilities.quick))
            {
                let what = format!("{} at {at}", offer.profile);
                self.check(what, |tester| tester.make_alone(offer, *at).map(|()| None));
            }
        }
        let typed: Vec<GpuInstanceProfile> = offers.iter().filter_map(profile_of).collect();
        self.test_layouts(&typed);
        self.test_compute_instances(&typed);
        let mut plain: Vec<&GpuInstanceProfile> =
            typed.iter().filter(|offer| offer.name.is_plain()).collect();
        plain.truncate(if self.abilities.quick { 1 } else { plain.len() });
        for offer in plain {
            let block = format!(
                "devices = [ {{ name = \"selftest\", profile = \"{}\"",
                offer.name
            );
            self.test_device(
                &offer.name.to_string(),
                &block,
                "} ]",
                self.gpu.sms_of(offer),
            );
        }
    }

    /// Compares what the driver offers with the catalog, profile by profile.
    fn compare_with_catalog(&mut self, offers: &[ListedProfile]) {
        let Some(model) = self.gpu.model() else {
            let why = format!("the catalog does not have {}", self.gpu.gpu.product);
            return self.leave_out("the catalog", &why);
        };
        let evidence = model.profiles_known();
        for known in model.offers() {
            let what = format!("{} as in the catalog", known.name);
            self.check(what, |_| {
                let offered = offers.iter().find(|offer| offer.profile_id == known.id.0);
                let Some(offered) = offered else {
                    let why = format!("the driver does not offer profile {}", known.id);
                    return Err(Verdict::Differs(why));
                };
                let differences = differences(&known, offered);
                ensure(differences.is_empty(), || {
                    format!(
                        "{} (evidence of the catalog: {evidence})",
                        differences.join("; ")
                    )
                })?;
                Ok(None)
            });
        }
        let is_known = |offer: &&ListedProfile| {
            !model
                .offers()
                .iter()
                .any(|known| known.id.0 == offer.profile_id)
        };
        for offer in offers.iter().filter(is_known) {
            self.leave_out(&offer.profile, "the catalog does not have this profile");
        }
    }

    /// Makes one instance on the empty GPU and looks at it.
    fn make_alone(&self, offer: &ListedProfile, at: Placement) -> Checked {
        let device = format!("{{ profile = \"{}\", at = {} }}", offer.profile, at.start);
        self.up("false", &format!("devices = [ {device} ]"))?;
        let gpu = self.listed()?;
        let made: Vec<(u32, Placement)> = gpu
            .gpu_instances
            .iter()
            .map(|instance| (instance.profile_id, instance.placement))
            .collect();
        ensure(made == [(offer.profile_id, at)], || {
            format!("the driver shows {made:?}")
        })?;
        ensure(gpu.devices.len() == 1, || {
            format!("the driver shows {} MIG devices", gpu.devices.len())
        })?;
        let (sms, offered) = (gpu.devices[0].multiprocessors, offer.multiprocessors);
        ensure(offered.is_none_or(|offered| offered == sms), || {
            format!(
                "the device has {sms} SMs, and the profile {}",
                offered.unwrap_or_default()
            )
        })?;
        self.check_devices(&gpu)
    }

    /// Checks that MIG devices have different UUIDs, and the device nodes by which CUDA opens them.
    fn check_devices(&self, gpu: &ListedGpu) -> Checked {
        let uuids: BTreeSet<&str> = gpu
            .devices
            .iter()
            .map(|device| device.uuid.as_str())
            .collect();
        ensure(uuids.len() == gpu.devices.len(), || {
            "two devices have one UUID".to_owned()
        })?;
        ensure(uuids.iter().all(|uuid| uuid.starts_with("MIG-")), || {
            format!("a device is called {uuids:?}")
        })?;
        let host = &self.environment.host;
        let Some(minor) = self.gpu.gpu.minor else {
            return Ok(());
        };
        for device in &gpu.devices {
            let instance = format!("gpu{minor}/mig/gi{}", device.gpu_instance_id);
            let compute = format!("{instance}/ci{}", device.compute_instance_id);
            for capability in [instance, compute] {
                let Some(node) = host.capability_node(&format!("{capability}/access")) else {
                    let why = format!("the driver has no capability {capability}");
                    return Err(Verdict::Differs(why));
                };
                ensure(host.below(&node).exists(), || {
                    format!("{} is missing", node.display())
                })?;
            }
        }
        Ok(())
    }

    /// Makes the layout with the most instances, and the fullest one with a large instance beside others.
    fn test_layouts(&mut self, offers: &[GpuInstanceProfile]) {
        let all = partitions(offers, 0);
        let many = all.iter().max_by_key(|layout| layout.instances());
        let several = all.iter().filter(|layout| layout.instances() > 1);
        let large = several.max_by_key(|layout| (layout.slices(), layout.most_slices()));
        let large = large.filter(|large| Some(*large) != many && !self.abilities.quick);
        for layout in many.into_iter().chain(large) {
            let names = layout.counts.iter();
            let names: Vec<String> = names
                .map(|(profile, count)| format!("{count} × {}", profile.name))
                .collect();
            self.check(format!("full: {}", listed(&names, "and")), |tester| {
                tester.make_layout(layout).map(|()| None)
            });
        }
    }

    fn make_layout(&self, layout: &Partition<'_>) -> Checked {
        let devices = layout.counts.iter();
        let devices: Vec<String> = devices
            .map(|(profile, count)| {
                format!("  {{ profile = \"{}\", count = {count} }},\n", profile.name)
            })
            .collect();
        self.up("false", &format!("devices = [\n{}]", devices.concat()))?;
        let gpu = self.listed()?;
        let wanted: Vec<u32> = counted(
            layout
                .counts
                .iter()
                .map(|(profile, count)| (profile.id.0, *count)),
        );
        let mut made: Vec<u32> = gpu.gpu_instances.iter().map(|one| one.profile_id).collect();
        made.sort_unstable();
        ensure(made == wanted, || {
            format!("the driver shows the profiles {made:?}")
        })?;
        ensure(gpu.devices.len() == wanted.len(), || {
            format!("the driver shows {} MIG devices", gpu.devices.len())
        })?;
        self.check_devices(&gpu)
    }

    /// Divides the largest instance into equal compute instances, and one of three slices into unequal ones.
    fn test_compute_instances(&mut self, offers: &[GpuInstanceProfile]) {
        let plain = offers.iter().filter(|offer| offer.name.is_plain());
        let largest = plain.clone().max_by_key(|offer| offer.slices);
        let equal = largest.filter(|offer| offer.slices > 1).map(|offer| {
            let slices = usize::try_from(offer.slices).unwrap_or_default();
            (offer, vec!["1c"; slices])
        });
        let uneven = plain.clone().find(|offer| offer.slices == 3);
        let uneven = uneven.map(|offer| (offer, vec!["2c", "1c"]));
        for (offer, parts) in equal.into_iter().chain(uneven) {
            self.check(
                format!("{} in {}", offer.name, parts.join(" + ")),
                |tester| {
                    let device = format!("{{ profile = \"{}\", compute = {parts:?} }}", offer.name);
                    tester.up("false", &format!("devices = [ {device} ]"))?;
                    let gpu = tester.listed()?;
                    ensure(gpu.devices.len() == parts.len(), || {
                        format!("the driver shows {} MIG devices", gpu.devices.len())
                    })?;
                    let sms: u32 = gpu
                        .devices
                        .iter()
                        .map(|device| device.multiprocessors)
                        .sum();
                    let most = offer.multiprocessors.unwrap_or(u32::MAX);
                    ensure(sms > 0 && sms <= most, || {
                        format!("the devices have {sms} SMs, and the instance {most}")
                    })?;
                    tester.check_devices(&gpu)?;
                    Ok(None)
                },
            );
        }
    }
}

/// Returns each number as often as its count says, in order.
fn counted(counts: impl Iterator<Item = (u32, u32)>) -> Vec<u32> {
    let mut all: Vec<u32> = counts
        .flat_map(|(number, count)| (0..count).map(move |_| number))
        .collect();
    all.sort_unstable();
    all
}

/// Names what differs between a profile of the catalog and of the driver.
fn differences(known: &GpuInstanceProfile, offered: &ListedProfile) -> Vec<String> {
    let mut differences = Vec::new();
    let mut compare = |what: &str, known: String, offered: String| {
        if known != offered {
            differences.push(format!(
                "{what}: the catalog has {known}, the driver {offered}"
            ));
        }
    };
    compare("name", known.name.to_string(), offered.profile.clone());
    compare(
        "compute slices",
        known.slices.to_string(),
        offered.slices.to_string(),
    );
    if let (Some(known), Some(offered)) = (known.multiprocessors, offered.multiprocessors) {
        compare("SMs", known.to_string(), offered.to_string());
    }
    if let (Some(known), Some(offered)) = (known.engines, offered.engines) {
        compare("engines", known.to_string(), offered.to_string());
    }
    compare(
        "most instances",
        known.most.to_string(),
        offered.most.to_string(),
    );
    let places = |places: &[Placement]| {
        let ranges: Vec<String> = places.iter().map(|place| place.range()).collect();
        ranges.join(" ")
    };
    compare(
        "placements",
        places(&known.placements),
        places(&offered.placements),
    );
    if let Some(bytes) = offered.memory_total_bytes {
        let (wanted, mib) = (known.memory_mib, bytes >> 20);
        if wanted.abs_diff(mib) * 100 > wanted * MEMORY_TOLERANCE {
            compare("memory", format!("{wanted} MiB"), format!("{mib} MiB"));
        }
    }
    differences
}

/// Returns an offer for the search for full layouts; `None` if its name is not understood.
fn profile_of(listed: &ListedProfile) -> Option<GpuInstanceProfile> {
    Some(GpuInstanceProfile {
        name: listed.profile.parse().ok()?,
        id: ProfileId(listed.profile_id),
        query: ProfileEnum(0),
        slices: listed.slices,
        multiprocessors: listed.multiprocessors,
        memory_mib: listed.memory_total_bytes.unwrap_or_default() >> 20,
        engines: listed.engines,
        most: listed.most,
        free: None,
        placements: listed.placements.clone(),
    })
}
