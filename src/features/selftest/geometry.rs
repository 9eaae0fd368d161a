//! The MIG mode and the instances of a GPU.

use std::collections::BTreeSet;

use super::finding::Verdict;
use super::tester::{CheckResult, Tester, ensure};
use crate::geometry::{
    GpuInstanceProfile, Partition, Placement, ProfileName, enumerate_partitions,
};
use crate::host::{format_count, join_words};
use crate::node::{Device, DevicePart, Gpu};

/// The difference in percent between the memory of a profile in the catalog and in the driver that is no error: drivers
/// differ by up to 7 %.
const MEMORY_TOLERANCE_PERCENT: u64 = 10;

impl Tester<'_> {
    /// Tests MIG mode, every instance profile, full layouts, compute instances, and programs on MIG devices.
    pub(super) fn test_mig(&mut self) {
        if !self.gpu.tests_mig {
            return;
        }
        let mut offers = Vec::new();
        let is_on = self.check("MIG mode on, without instances", |tester| {
            tester.apply_profile("false", "devices = []")?;
            let (gpu, _) = tester.observe_gpu()?;
            offers = gpu.profiles;
            Ok(None)
        });
        if !is_on {
            return self.leave_out("instances", "MIG mode is not on");
        }
        self.note_offers(&offers);
        self.compare_with_catalog(&offers);
        for offer in &offers {
            let name = offer.name.to_string();
            if name.parse::<ProfileName>().is_err() {
                self.leave_out(&name, "a profile cannot name it");
                continue;
            }
            let first = offer.placements.first();
            let last = offer.placements.last().filter(|last| Some(*last) != first);
            let tested = if self.abilities.quick {
                [first, None]
            } else {
                [first, last]
            };
            for at in tested.into_iter().flatten() {
                let what = format!("{name} at {at}");
                self.check(what, |tester| tester.make_alone(offer, *at).map(|()| None));
            }
        }
        offers.retain(|offer| offer.name.to_string().parse::<ProfileName>().is_ok());
        self.test_layouts(&offers);
        self.test_compute_instances(&offers);
        let mut plain: Vec<&GpuInstanceProfile> = offers
            .iter()
            .filter(|offer| offer.name.is_plain())
            .collect();
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
                self.gpu.size_of(offer),
            );
        }
    }

    /// Compares what the driver offers with the catalog, profile by profile.
    pub(super) fn compare_with_catalog(&mut self, offers: &[GpuInstanceProfile]) {
        let Some(model) = self.gpu.model() else {
            let why = format!("the catalog does not have {}", self.gpu.gpu.product);
            return self.leave_out("the catalog", &why);
        };
        let evidence = model.profiles_known();
        for known in model.offers() {
            let what = format!("{} as in the catalog", known.name);
            self.check(what, |_| {
                let offered = offers.iter().find(|offer| offer.id == known.id);
                let Some(offered) = offered else {
                    let why = format!("the driver does not offer profile {}", known.id);
                    return Err(Verdict::Differs(why));
                };
                let differences = catalog_differences(&known, offered);
                ensure(differences.is_empty(), || {
                    format!(
                        "{} (evidence of the catalog: {evidence})",
                        differences.join("; ")
                    )
                })?;
                Ok(None)
            });
        }
        for offer in offers {
            if !model.offers().iter().any(|known| known.id == offer.id) {
                let name = offer.name.to_string();
                self.leave_out(&name, "the catalog does not have this profile");
            }
        }
    }

    /// Makes one instance on the empty GPU and looks at its device. `up` itself compares profile, placement and SMs.
    fn make_alone(&self, offer: &GpuInstanceProfile, at: Placement) -> CheckResult {
        let device = format!("{{ profile = \"{}\", at = {} }}", offer.name, at.start);
        self.apply_profile("false", &format!("devices = [ {device} ]"))?;
        let (_, devices) = self.observe_gpu()?;
        self.check_devices(&devices).map(drop)
    }

    /// Checks that the UUIDs of MIG devices differ, and that there are the device nodes by which CUDA opens them.
    fn check_devices<'d>(&self, devices: &'d [Device]) -> CheckResult<Vec<&'d DevicePart>> {
        let uuids: BTreeSet<&str> = devices.iter().map(|device| device.uuid.as_str()).collect();
        ensure(uuids.iter().all(|uuid| uuid.starts_with("MIG-")), || {
            format!("a device is called {uuids:?}")
        })?;
        ensure(uuids.len() == devices.len(), || {
            "two devices have one UUID".to_owned()
        })?;
        let parts: Vec<_> = devices
            .iter()
            .filter_map(|device| device.part.as_ref())
            .collect();
        let host = &self.environment.host;
        let Some(minor) = self.gpu.gpu.minor else {
            return Ok(parts);
        };
        for part in &parts {
            let instance = format!("gpu{minor}/mig/gi{}", part.gpu_instance.0);
            let compute = format!("{instance}/ci{}", part.compute_instance.0);
            for capability in [instance, compute] {
                let Some(node) = host.capability_node(&format!("{capability}/access")) else {
                    let why = format!("the driver has no capability {capability}");
                    return Err(Verdict::Differs(why));
                };
                ensure(host.under_root(&node).exists(), || {
                    format!("{} is missing", node.display())
                })?;
            }
        }
        Ok(parts)
    }

    /// Makes the layout with the most instances, and the fullest one with a large instance beside others.
    fn test_layouts(&mut self, offers: &[GpuInstanceProfile]) {
        let all = enumerate_partitions(offers, 0);
        let many = all.iter().max_by_key(|layout| layout.instance_count());
        let large = all
            .iter()
            .filter(|layout| layout.instance_count() > 1)
            .max_by_key(|layout| (layout.total_slices(), layout.most_slices()))
            .filter(|large| Some(*large) != many && !self.abilities.quick);
        for layout in many.into_iter().chain(large) {
            let names: Vec<String> = layout
                .counts
                .iter()
                .map(|(profile, count)| format!("{count} × {}", profile.name))
                .collect();
            self.check(format!("full: {}", join_words(&names, "and")), |tester| {
                tester.make_layout(layout).map(|()| None)
            });
        }
    }

    fn make_layout(&self, layout: &Partition<'_>) -> CheckResult {
        let devices: Vec<String> = layout
            .counts
            .iter()
            .map(|(profile, count)| {
                format!("  {{ profile = \"{}\", count = {count} }},\n", profile.name)
            })
            .collect();
        self.apply_profile("false", &format!("devices = [\n{}]", devices.concat()))?;
        let (_, devices) = self.observe_gpu()?;
        self.check_devices(&devices).map(drop)
    }

    /// Divides the largest instance into equal compute instances, and one of three slices into unequal ones.
    fn test_compute_instances(&mut self, offers: &[GpuInstanceProfile]) {
        let plain: Vec<_> = offers
            .iter()
            .filter(|offer| offer.name.is_plain())
            .collect();
        let largest = plain.iter().max_by_key(|offer| offer.slices);
        let equal = largest.filter(|offer| offer.slices > 1).map(|offer| {
            let slices = usize::try_from(offer.slices).unwrap_or_default();
            (offer, vec!["1c"; slices])
        });
        let uneven = plain
            .iter()
            .find(|offer| offer.slices == 3)
            .map(|offer| (offer, vec!["2c", "1c"]));
        for (offer, parts) in equal.into_iter().chain(uneven) {
            self.check(
                format!("{} in {}", offer.name, parts.join(" + ")),
                |tester| {
                    let device = format!("{{ profile = \"{}\", compute = {parts:?} }}", offer.name);
                    tester.apply_profile("false", &format!("devices = [ {device} ]"))?;
                    let (gpu, devices) = tester.observe_gpu()?;
                    let made = tester.check_devices(&devices)?;
                    let sms: u32 = made.iter().map(|part| part.multiprocessors).sum();
                    let most = offer.multiprocessors.unwrap_or(u32::MAX);
                    ensure(sms > 0 && sms <= most, || {
                        format!("the devices have {sms} SMs, and the instance {most}")
                    })?;
                    check_part_sizes(&gpu).map(|()| None)
                },
            );
        }
    }
}

/// True if an amount of memory, in MiB, is the expected one, but for what drivers differ by.
pub(super) fn is_like_memory(mib: u64, expected: u64) -> bool {
    expected.abs_diff(mib) * 100 <= expected * MEMORY_TOLERANCE_PERCENT
}

/// Fails unless each device in an instance has the SMs of its compute instance profile.
fn check_part_sizes(gpu: &Gpu) -> CheckResult {
    for instance in &gpu.instances {
        for part in &instance.compute {
            let offered = instance
                .offered
                .iter()
                .find(|offer| offer.id == part.profile);
            let (sms, slices) = (
                part.multiprocessors,
                format_count(part.slices as usize, "slice"),
            );
            if let Some(expected) = offered.map(|offer| offer.multiprocessors) {
                ensure(sms == expected, || {
                    format!("a device of {slices} has {sms} SMs, and its profile {expected}")
                })?;
            }
        }
    }
    Ok(())
}

/// Names what differs between a profile of the catalog and of the driver.
fn catalog_differences(known: &GpuInstanceProfile, offered: &GpuInstanceProfile) -> Vec<String> {
    let mut differences = Vec::new();
    let mut compare = |what: &str, known: String, offered: String| {
        if known != offered {
            differences.push(format!(
                "{what}: the catalog has {known}, the driver {offered}"
            ));
        }
    };
    compare("name", known.name.to_string(), offered.name.to_string());
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
        let ranges: Vec<String> = places.iter().map(|place| place.format_range()).collect();
        ranges.join(" ")
    };
    compare(
        "placements",
        places(&known.placements),
        places(&offered.placements),
    );
    let (wanted, mib) = (known.memory_mib, offered.memory_mib);
    if mib > 0 && !is_like_memory(mib, wanted) {
        compare("memory", format!("{wanted} MiB"), format!("{mib} MiB"));
    }
    differences
}
