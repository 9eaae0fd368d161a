//! The devices of a snapshot that the words of a command line mean.

use std::collections::BTreeSet;

use super::device_selector::{
    Candidate, is_glob, parse_index, part_of_joint_error, select_candidates,
};
use super::device_spelling::strip_affixes;
use super::{Device, NoSuchDevice, Node};
use crate::host::format_gpus;

impl Node {
    /// Returns the names of the devices that the words of a command line mean, each once.
    pub fn resolve_words(&self, words: &[String]) -> Result<Vec<String>, NoSuchDevice> {
        let mut names: Vec<String> = Vec::new();
        for word in words {
            for name in self.resolve_word(word)? {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        Ok(names)
    }

    fn resolve_word(&self, word: &str) -> Result<Vec<String>, NoSuchDevice> {
        // Without the driver, the name of a stopped device could be the beginning of another device's name.
        if self.has_no_driver()
            && let Some(error) = self.stopped_error(word)
        {
            return Err(error);
        }
        let is_glob = is_glob(word);
        let is_meant = |device: &&Device| !is_glob || !self.is_in_stopped_joint(device);
        let candidates = self.devices.iter().filter(is_meant).map(|device| {
            // Another one if the device was made again.
            let recorded = device.served.iter().map(|served| &served.record.uuid);
            let uuids = std::iter::once(&device.uuid).chain(recorded);
            Candidate {
                value: device.name.clone(),
                name: Some(&device.name),
                uuids: uuids.map(String::as_str).collect(),
            }
        });
        let (wanted, known) = match select_candidates(word, candidates.collect()) {
            Err(NoSuchDevice::Unknown { wanted, known }) => (wanted, known),
            selected => return selected,
        };
        if strip_affixes(word) != word {
            return self.resolve_word(strip_affixes(word));
        }
        if let Some(found) = self.find_device_by_spelling(word) {
            return self.name_unless_joint(word, found?).map(|name| vec![name]);
        }
        if let Some(error) = self.unstartable_error(&wanted) {
            return Err(error);
        }
        let gpus_of = |device: &Device| (device.name.clone(), self.gpu_indices_of(device));
        if let Some(error) = part_of_joint_error(&wanted, self.devices.iter().map(gpus_of)) {
            return Err(error);
        }
        if let Some(gpu) = parse_index(&wanted)
            && let Some(device) = self.stopped_joint_with(gpu)
        {
            return Err(NoSuchDevice::PartOfStopped { gpu, device });
        }
        if let Some(why) = self.lost_gpu_reason(&wanted) {
            return Err(NoSuchDevice::Lost(why.to_owned()));
        }
        if !self.has_no_driver() {
            return Err(NoSuchDevice::Unknown { wanted, known });
        }
        Err(self.not_served_error(word, &known))
    }

    /// Returns the name of the device that a word of another program means. One GPU of a joint device is not that device.
    fn name_unless_joint(&self, word: &str, device: &Device) -> Result<String, NoSuchDevice> {
        let name = device.name.clone();
        if !device.key.is_joint() {
            return Ok(name);
        }
        let gpu = self.gpu_index(word)?;
        if device.is_stopped_joint() {
            return Err(NoSuchDevice::PartOfStopped { gpu, device: name });
        }
        Err(NoSuchDevice::PartOfJoint {
            wanted: word.to_owned(),
            gpu,
            device: name,
        })
    }

    /// Returns the names of the devices of the GPU with this index, those that are gone included; never none. A GPU of a joint
    /// device that `down` has stopped has only that device.
    pub fn names_on(&self, index: u32) -> Result<Vec<String>, NoSuchDevice> {
        let names: Vec<String> = self
            .devices_of_gpu(index)
            .map(|device| device.name.clone())
            .collect();
        if names.is_empty() {
            return Err(self.no_device_error(index));
        }
        Ok(names)
    }

    /// Returns the devices of the GPU with this index, those that are gone included, but none that is part of a stopped joint
    /// device.
    pub(super) fn devices_of_gpu(&self, index: u32) -> impl Iterator<Item = &Device> {
        self.devices
            .iter()
            .filter(move |device| self.gpu_indices_of(device).contains(&index))
            .filter(|device| !self.is_in_stopped_joint(device))
    }

    /// Returns the error for a GPU without a device.
    pub(super) fn no_device_error(&self, index: u32) -> NoSuchDevice {
        if let Some(why) = self.lost_gpu_reason(&index.to_string()) {
            return NoSuchDevice::Lost(why.to_owned());
        }
        if let Some(device) = self.stopped_joint_with(index) {
            return NoSuchDevice::PartOfStopped { gpu: index, device };
        }
        if self.has_no_driver() {
            let gpus: BTreeSet<u32> = self
                .devices
                .iter()
                .flat_map(|device| device.gpu_indices().iter().copied())
                .collect();
            let gpus: Vec<u32> = gpus.into_iter().collect();
            let have = if gpus.len() == 1 { "has" } else { "have" };
            let served = |_| {
                (!gpus.is_empty()).then(|| {
                    format!(
                        "choose a device of {}, which {have} daemons",
                        format_gpus(&gpus)
                    )
                })
            };
            let what = format!("a device of GPU {index}");
            return NoSuchDevice::not_served(&what, served, self.first_unread_reason());
        }
        NoSuchDevice::OfGpu {
            index,
            gpus: self.gpus.iter().map(|gpu| gpu.index).collect(),
        }
    }

    /// Returns the driver's error for the lost GPU of the device with this default name.
    fn lost_gpu_reason(&self, name: &str) -> Option<&str> {
        let index: u32 = name.split('.').next()?.parse().ok()?;
        let mut lost = self.lost_gpus();
        lost.find_map(|(one, why)| (one == index).then_some(why))
    }
}
