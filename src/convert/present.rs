//! The present devices of a node, in the form of a profile.

use std::collections::BTreeMap;

use toml::Table;

use super::settings::{shared, table};
use super::templates::{Template, counted, with_gpu};
use crate::geometry::ProfileName;
use crate::node::{DaemonState, Device, Gpu, Node};
use crate::nvml::{ComputeInstanceReading, GpuInstanceReading};
use crate::state::RunDir;

/// The GPUs of a node that a profile can say something about.
pub(super) struct Present {
    pub(super) gpus: Vec<PresentGpu>,
    /// The settings that most devices share and that are not the default.
    pub(super) mps: Table,
    /// Templates with `{n}`, and with which number, by the names that they give.
    templates: BTreeMap<String, (Template, usize)>,
    /// Notes on what the profile leaves out.
    pub(super) remarks: Vec<String>,
}

pub(super) struct PresentGpu {
    pub(super) index: u32,
    product: String,
    pub(super) standing: Standing,
}

pub(super) enum Standing {
    Whole(PresentDevice),
    Parts(Vec<PresentPart>),
}

/// A GPU instance.
pub(super) struct PresentPart {
    pub(super) profile: ProfileName,
    pub(super) at: u32,
    /// The slices of its compute instances; empty for the one that has all its SMs.
    pub(super) compute: Vec<u32>,
    pub(super) devices: Vec<PresentDevice>,
}

pub(super) struct PresentDevice {
    pub(super) name: String,
    pub(super) has_default_name: bool,
    /// Its settings; `None` where it has no daemon.
    pub(super) mps: Option<Table>,
}

impl PresentGpu {
    /// Its devices, from left to right.
    pub(super) fn devices(&self) -> Vec<&PresentDevice> {
        match &self.standing {
            Standing::Whole(device) => vec![device],
            Standing::Parts(parts) => parts.iter().flat_map(|part| &part.devices).collect(),
        }
    }

    /// The devices of its nth GPU instance.
    pub(super) fn devices_of(&self, nth: usize) -> Vec<&PresentDevice> {
        match &self.standing {
            Standing::Whole(_) => Vec::new(),
            Standing::Parts(parts) => parts
                .get(nth)
                .into_iter()
                .flat_map(|p| &p.devices)
                .collect(),
        }
    }
}

impl Present {
    pub(super) fn of(node: &Node, run_dir: &RunDir) -> Self {
        let mut present = Self {
            gpus: Vec::new(),
            mps: Table::new(),
            templates: BTreeMap::new(),
            remarks: Vec::new(),
        };
        let mut left_out: Vec<(String, Vec<String>)> = Vec::new();
        for gpu in &node.gpus {
            match standing(node, run_dir, gpu, &mut present.remarks) {
                Ok(standing) => present.gpus.push(PresentGpu {
                    index: gpu.index,
                    product: gpu.product.clone(),
                    standing,
                }),
                Err(why) => match left_out.iter_mut().find(|(other, _)| *other == why) {
                    Some((_, gpus)) => gpus.push(gpu.index.to_string()),
                    None => left_out.push((why, vec![gpu.index.to_string()])),
                },
            }
        }
        let left_out = left_out.iter().map(|(why, gpus)| match gpus.as_slice() {
            [one] => format!("GPU {one} is left out: {why}."),
            several => format!(
                "GPUs {} are left out, each for this: {why}.",
                several.join(", ")
            ),
        });
        present.remarks.extend(left_out);
        present.templates = present.counted();
        present.order();
        let devices = present.gpus.iter().flat_map(PresentGpu::devices);
        present.mps = shared(
            &devices
                .filter_map(|device| device.mps.as_ref())
                .collect::<Vec<_>>(),
        );
        present
    }

    /// The template with `{n}` that gives a name together with others.
    pub(super) fn template(&self, name: &str) -> Option<&Template> {
        self.templates.get(name).map(|(template, _)| template)
    }

    fn counted(&self) -> BTreeMap<String, (Template, usize)> {
        fn named<'a>(devices: impl IntoIterator<Item = &'a PresentDevice>) -> Vec<&'a str> {
            let given = devices
                .into_iter()
                .filter(|device| !device.has_default_name);
            given.map(|device| device.name.as_str()).collect()
        }
        let all = self.gpus.iter().map(|gpu| named(gpu.devices()));
        let parts = self.gpus.iter().flat_map(|gpu| match &gpu.standing {
            Standing::Whole(_) => [].as_slice(),
            Standing::Parts(parts) => parts.as_slice(),
        });
        let together: Vec<Vec<&str>> = parts.map(|part| named(&part.devices)).collect();
        counted(&all.collect::<Vec<_>>(), &together)
    }

    /// Puts what a template counts into the order in which it counts; the rest keeps its own.
    fn order(&mut self) {
        for gpu in &mut self.gpus {
            if let Standing::Parts(parts) = &mut gpu.standing {
                parts.sort_by_key(|part| {
                    let first = part.devices.first();
                    first.and_then(|device| self.templates.get(&device.name).cloned())
                });
            }
        }
    }

    /// GPUs that one block can be for: alike but for their index, also in names.
    pub(super) fn groups(&self) -> Vec<Vec<&PresentGpu>> {
        let mut groups: Vec<Vec<&PresentGpu>> = Vec::new();
        for gpu in &self.gpus {
            match groups.iter_mut().find(|group| alike(group[0], gpu)) {
                Some(group) => group.push(gpu),
                None => groups.push(vec![gpu]),
            }
        }
        groups
    }
}

fn alike(a: &PresentGpu, b: &PresentGpu) -> bool {
    let (devices_of_a, devices_of_b) = (a.devices(), b.devices());
    let same_names = || {
        devices_of_a.iter().zip(&devices_of_b).all(|(one, other)| {
            if one.has_default_name || other.has_default_name {
                return one.has_default_name == other.has_default_name;
            }
            let templates = with_gpu(&other.name, b.index);
            with_gpu(&one.name, a.index)
                .iter()
                .any(|template| templates.contains(template))
        })
    };
    let same_parts = match (&a.standing, &b.standing) {
        (Standing::Whole(_), Standing::Whole(_)) => true,
        (Standing::Parts(a), Standing::Parts(b)) => {
            let key = |part: &PresentPart| {
                (
                    part.profile.clone(),
                    part.at,
                    part.compute.clone(),
                    part.devices.len(),
                )
            };
            a.iter().map(key).eq(b.iter().map(key))
        }
        _ => false,
    };
    let same_settings = devices_of_a
        .iter()
        .map(|d| &d.mps)
        .eq(devices_of_b.iter().map(|d| &d.mps));
    a.product == b.product && same_parts && same_settings && same_names()
}

/// Returns the devices of a GPU, or the reason why a profile cannot express them.
fn standing(
    node: &Node,
    run_dir: &RunDir,
    gpu: &Gpu,
    remarks: &mut Vec<String>,
) -> Result<Standing, String> {
    if let Some(why) = &gpu.hidden {
        return Err(format!("its instances cannot be seen: {why}"));
    }
    let devices: Vec<Device> = gpu.devices();
    if !gpu.in_mig_mode() {
        let [device] = devices.as_slice() else {
            return Err("it is not one device".to_owned());
        };
        let whole = present_device(node, run_dir, device, remarks);
        if whole.mps.is_none() {
            return Err("it is whole and has no daemon".to_owned());
        }
        return Ok(Standing::Whole(whole));
    }
    if gpu.instances.is_empty() {
        return Err("it is in MIG mode without instances, which a profile cannot say".to_owned());
    }
    let mut parts = Vec::new();
    for instance in &gpu.instances {
        let profile = gpu.profile(instance.profile).ok_or_else(|| {
            format!(
                "it has an instance of the profile {} that it does not offer",
                instance.profile
            )
        })?;
        let of_instance = devices.iter().filter(|device| {
            device
                .part
                .as_ref()
                .is_some_and(|part| part.gpu_instance == instance.id)
        });
        parts.push(PresentPart {
            profile: profile.name.clone(),
            at: instance.placement.start,
            compute: compute(instance, profile.multiprocessors),
            devices: of_instance
                .map(|device| present_device(node, run_dir, device, remarks))
                .collect(),
        });
    }
    Ok(Standing::Parts(parts))
}

/// The present state of a device, with remarks on what `up` would do about its daemon.
fn present_device(
    node: &Node,
    run_dir: &RunDir,
    device: &Device,
    remarks: &mut Vec<String>,
) -> PresentDevice {
    let served = node
        .served_on(&device.key)
        .filter(|served| served.device_is_there);
    if let Some(served) = served.filter(|served| served.run_dir != *run_dir) {
        let of = served.run_dir.path().display();
        let name = &served.record.name;
        remarks.push(format!(
            "{name} is served by a daemon of {of}: up refuses to change that."
        ));
    }
    if let Some(served) = served.filter(|served| served.state == DaemonState::Dead) {
        let name = &served.record.name;
        remarks.push(format!(
            "The daemon of {name} is dead: up would start it again."
        ));
    }
    let name = served.map_or(&device.default_name, |served| &served.record.name);
    PresentDevice {
        name: name.clone(),
        has_default_name: *name == device.default_name,
        mps: served.map(|served| table(&served.record.settings)),
    }
}

fn compute(instance: &GpuInstanceReading, all: u32) -> Vec<u32> {
    let has_all = |compute: &ComputeInstanceReading| compute.multiprocessors >= all;
    match instance.compute.as_slice() {
        [one] if has_all(one) => Vec::new(),
        several => several.iter().map(|compute| compute.slices).collect(),
    }
}
