//! mig-parted's own configuration files, read without the program's own reader, and the geometry that
//! mig-parted makes of each.

use std::collections::BTreeMap;

use serde::Deserialize;
use simnode::catalog::Model;

macro_rules! files {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../../fixtures/mig-parted/", $name)))),*]
    };
}

pub(crate) const FILES: [(&str, &str); 5] = files![
    "config-default.yaml"
    "nvidia-mig-manager-example.yaml"
    "nvidia-mig-manager-example-hopper-blackwell.yaml"
    "config.yaml"
    "dgx-station-80gb-config.yaml"
];

/// A file, as far as these ones go: read without the program's own reader.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct File {
    pub(crate) mig_configs: BTreeMap<String, Vec<Entry>>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Entry {
    device_filter: Option<Words>,
    pub(crate) devices: Gpus,
    mig_enabled: bool,
    #[serde(default)]
    mig_devices: BTreeMap<String, u32>,
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Words {
    One(String),
    Many(Vec<String>),
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Gpus {
    All(String),
    Some(Vec<u32>),
}

/// MIG mode and the MIG devices of a GPU.
pub(crate) type Geometry = (bool, BTreeMap<String, u32>);

impl Entry {
    fn selects(&self, gpu: u32, model: &Model) -> bool {
        let id = format!("0x{:08X}", model.pci_ids().0);
        let is_of_model = match &self.device_filter {
            None => true,
            Some(Words::One(word)) => *word == id,
            Some(Words::Many(words)) => words.contains(&id),
        };
        let is_listed = match &self.devices {
            Gpus::All(word) => word == "all",
            Gpus::Some(indices) => indices.contains(&gpu),
        };
        is_of_model && is_listed
    }
}

/// The geometry that mig-parted makes of each GPU that the configuration selects, on a node with so many of a model:
/// the last entry stays.
pub(crate) fn wanted(entries: &[Entry], model: &Model, gpus: u32) -> BTreeMap<u32, Geometry> {
    let last = |gpu: u32| {
        let mut entries = entries.iter().rev();
        let entry = entries.find(|entry| entry.selects(gpu, model))?;
        Some((gpu, (entry.mig_enabled, entry.mig_devices.clone())))
    };
    (0..gpus).filter_map(last).collect()
}

/// True if a configuration is for nodes with this model: it selects some of their GPUs, and they offer as many of each
/// profile as it wants there.
pub(crate) fn suits(wanted: &BTreeMap<u32, Geometry>, model: &Model) -> bool {
    let offers = |(name, count): (&String, &u32)| {
        let mut profiles = model.profiles.iter();
        profiles.any(|profile| profile.name == *name && *count <= profile.maximum)
    };
    let mut devices = wanted.values().flat_map(|(_, devices)| devices);
    !wanted.is_empty() && devices.all(offers)
}

pub(crate) fn read(yaml: &str) -> File {
    serde_saphyr::from_str(yaml).unwrap()
}

/// The geometry of GPUs with these MIG modes and MIG devices, by the names that NVIDIA's tools give these.
pub(crate) fn geometry(
    modes: impl IntoIterator<Item = (u32, bool)>,
    devices: impl IntoIterator<Item = (u32, String)>,
) -> BTreeMap<u32, Geometry> {
    let modes = modes.into_iter();
    let mut geometry: BTreeMap<u32, Geometry> = modes
        .map(|(gpu, is_on)| (gpu, (is_on, BTreeMap::new())))
        .collect();
    for (gpu, name) in devices {
        let (_, counts) = geometry.get_mut(&gpu).unwrap();
        *counts.entry(name).or_default() += 1;
    }
    geometry
}
