//! An imported profile gives the geometry that mig-parted gives: for random devices on random models.

use std::collections::BTreeMap;
use std::path::Path;

use mig_mps::internals::catalog::{self, Model};
use mig_mps::internals::convert::{Excerpt, ImportOptions, MigDevice, import, mig_parted, pack};
use mig_mps::internals::geometry::ComputeName;
use mig_mps::internals::plan::check::{GpuArgument, check_on_gpus};
use mig_mps::internals::profile::Profile;
use proptest::prelude::*;

use crate::cli::profile::import::config;

/// GPU instances with the slices of their compute instances.
type Geometry = Vec<(String, Vec<u32>)>;

/// The geometry that a profile makes of one GPU of a model; `None` where it does not fit.
fn geometry(profile: &str, model: &'static Model) -> Option<Geometry> {
    let profile = Profile::parse(Path::new("p.toml"), profile.to_owned()).unwrap();
    let on_node = check_on_gpus(&profile, &[GpuArgument { model, count: 1 }]).ok()?;
    let shape = on_node.gpus[0].shape.clone().unwrap();
    let mut instances: BTreeMap<u32, (String, Vec<u32>)> = BTreeMap::new();
    for device in shape.devices {
        let named: MigDevice = device.profile.unwrap().parse().unwrap();
        let instance = instances
            .entry(device.place.placement().unwrap().start)
            .or_default();
        instance.0 = named.profile.to_string();
        instance.1.extend(named.compute);
    }
    let mut all: Geometry = instances.into_values().collect();
    for (_, compute) in &mut all {
        compute.sort_unstable_by(|a, b| b.cmp(a));
    }
    all.sort();
    Some(all)
}

/// The geometry that mig-parted makes of the devices: it goes through them in an order, puts each into the GPU
/// instance made last where that fits, and takes the first order that the GPU has room for.
fn as_mig_parted(devices: &[MigDevice], model: &'static Model) -> Option<Geometry> {
    let slices = |device: &MigDevice| device.compute.unwrap_or(device.profile.slices());
    let mut sorted = devices.to_vec();
    sorted.sort_by_key(|d| std::cmp::Reverse((d.profile.slices(), slices(d))));
    let mut found = None;
    orders(&mut sorted, 0, &mut |order| {
        let mut instances: Geometry = Vec::new();
        for device in order {
            let profile = device.profile.to_string();
            if let (Some((last, compute)), Some(wanted)) = (instances.last_mut(), device.compute)
                && *last == profile
                && !compute.is_empty()
                && compute.iter().sum::<u32>() + wanted <= device.profile.slices()
            {
                compute.push(wanted);
                continue;
            }
            instances.push((profile, device.compute.into_iter().collect()));
        }
        for (_, compute) in &mut instances {
            compute.sort_unstable_by(|a, b| b.cmp(a));
        }
        instances.sort();
        let parts: Vec<String> = instances
            .iter()
            .map(|(p, _)| format!("{{ profile = '{p}' }}"))
            .collect();
        let plain = format!(
            "[[gpu]]\nselect = {{ all = true }}\ndevices = [ {} ]\n",
            parts.join(", ")
        );
        if geometry(&plain, model).is_some() {
            found = Some(instances);
        }
        found.is_none()
    });
    found
}

/// Every order of the devices, the given one first, until `go_on` says no.
fn orders(
    devices: &mut Vec<MigDevice>,
    from: usize,
    go_on: &mut dyn FnMut(&[MigDevice]) -> bool,
) -> bool {
    if from == devices.len() {
        return go_on(devices);
    }
    for next in from..devices.len() {
        if next > from && devices[from..next].contains(&devices[next]) {
            continue;
        }
        let device = devices.remove(next);
        devices.insert(from, device);
        let more = orders(devices, from + 1, go_on);
        let device = devices.remove(from);
        devices.insert(next, device);
        if !more {
            return false;
        }
    }
    true
}

/// A model and MIG devices of its profiles, some with part of the SMs.
fn some_devices() -> impl Strategy<Value = (&'static Model, Vec<MigDevice>)> {
    let model = (0..catalog::models().len()).prop_map(|nth| catalog::models().nth(nth).unwrap());
    model.prop_flat_map(|model| {
        let offers = model.offers();
        let device = (0..offers.len(), 0..4_u32).prop_map(move |(nth, part)| {
            let profile = offers[nth].name.clone();
            let text = match part {
                0 => profile.to_string(),
                part => {
                    let part = part.min(profile.slices());
                    // The largest that a GPU instance of that size offers.
                    let offered =
                        |slices: &u32| ComputeName { slices: *slices }.fits(profile.slices());
                    let part = (1..=part).rev().find(offered).unwrap_or(1);
                    format!("{part}c.{profile}")
                }
            };
            text.parse::<MigDevice>().unwrap()
        });
        (Just(model), proptest::collection::vec(device, 1..=5))
    })
}

/// `mig-devices` with that many of each.
fn spec_of(devices: &[MigDevice]) -> String {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for device in devices {
        *counts.entry(device.to_string()).or_default() += 1;
    }
    let counts: Vec<String> = counts
        .iter()
        .map(|(name, n)| format!("\"{name}\": {n}"))
        .collect();
    config(&format!(
        "- devices: all\n  mig-enabled: true\n  mig-devices: {{ {} }}",
        counts.join(", ")
    ))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Our profile makes the same of a file as mig-parted does, and what has no room there has none here.
    #[test]
    fn an_imported_profile_gives_the_geometry_that_mig_parted_gives((model, devices) in some_devices()) {
        let spec = mig_parted::Spec::parse(Excerpt::whole(Path::new("c.yaml"), spec_of(&devices))).unwrap();
        let profile = import(&spec, "c", ImportOptions::default()).unwrap().draft.to_string();
        prop_assert_eq!(geometry(&profile, model), as_mig_parted(&devices, model), "{}", profile);
    }
}

/// Every pair of devices of every model, compute instances and all.
#[test]
fn packing_loses_and_adds_nothing() {
    for model in catalog::models() {
        let mut kinds: Vec<MigDevice> = Vec::new();
        for offer in model.offers() {
            kinds.push(offer.name.to_string().parse().unwrap());
            let offered =
                (1..offer.slices).filter(|&slices| ComputeName { slices }.fits(offer.slices));
            kinds.extend(offered.map(|n| format!("{n}c.{}", offer.name).parse().unwrap()));
        }
        for a in &kinds {
            for b in &kinds {
                let packed = pack(&[a.clone(), b.clone()]);
                let mut back: Vec<MigDevice> = packed
                    .iter()
                    .flat_map(|shared| {
                        let whole = shared.compute.is_empty().then_some(None);
                        let parts = shared.compute.iter().copied().map(Some);
                        let profile = shared.profile.clone();
                        whole
                            .into_iter()
                            .chain(parts)
                            .map(move |compute| MigDevice {
                                profile: profile.clone(),
                                compute,
                            })
                    })
                    .collect();
                back.sort();
                let mut wanted = vec![a.clone(), b.clone()];
                wanted.sort();
                assert_eq!(back, wanted, "{}", model.key);
            }
        }
    }
}
