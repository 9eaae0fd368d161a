//! mig-parted's configuration file: `version: v1` and named lists of entries, each with the GPUs it is
//! for and the MIG devices they get (`api/spec/v1/spec.go` of NVIDIA/mig-parted).
//!
//! mig-parted reads it with go-yaml, of YAML 1.1: `yes` is true, `010` is 8, and of equal keys the last one counts
//! (`ParseConfigFile`, and `yaml.go` of sigs.k8s.io/yaml).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};

use super::yaml::Excerpt;
use crate::catalog::{PciId, products_of};
use crate::geometry::{ComputeName, ProfileName};
use crate::host::is_terminal_control;
use crate::nvml::GpuInstanceReading;
use crate::profile::{ProfileError, Span};

/// A text, read and checked.
#[derive(Debug)]
pub struct Spec {
    /// Its text, for errors found later.
    pub text: Excerpt,
    /// The configurations by name.
    pub configs: BTreeMap<String, Vec<ConfigEntry>>,
    /// The mistakes of other configurations, by their names.
    pub faults: Vec<(String, ProfileError)>,
}

/// One entry of a configuration.
#[derive(Clone, Debug)]
pub struct ConfigEntry {
    /// Where it stands.
    pub span: Span,
    /// `device-filter`: GPUs of other models are passed over; empty for all models.
    pub filter: Vec<DeviceFilter>,
    /// The indices of its GPUs; `None` for all.
    pub devices: Option<Vec<u32>>,
    /// True for MIG mode on.
    pub mig_enabled: bool,
    /// The MIG devices, each as often as it is wanted.
    pub mig_devices: Vec<MigDevice>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SpecFile {
    version: Spanned<String>,
    mig_configs: Spanned<BTreeMap<String, Spanned<Vec<Spanned<SpecEntry>>>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SpecEntry {
    device_filter: Option<OneOrMany>,
    devices: Spanned<AllOrSome>,
    mig_enabled: Flag,
    mig_devices: Option<Spanned<BTreeMap<String, Spanned<Count>>>>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string like \"0x20B210DE\", or a list of such"
)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected \"all\" or a list of indices")]
enum AllOrSome {
    All(String),
    Some(Vec<Count>),
}

/// A truth value. Nothing in quotes is one.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected true or false, without quotes")]
enum Flag {
    Is(bool),
}

/// A whole number. Nothing in quotes is one.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a whole number, without quotes")]
enum Count {
    Is(i64),
}

/// More of one MIG device than any GPU can have, by far.
const MAX_DEVICES_OF_KIND: i64 = 64;

/// More entries than any fleet needs.
const MAX_ENTRIES: usize = 1000;

impl Spec {
    /// Reads and checks a text.
    pub fn parse(text: Excerpt) -> Result<Self, ProfileError> {
        let file: SpecFile = text.parse()?;
        let mut spec = Self {
            text,
            configs: BTreeMap::new(),
            faults: Vec::new(),
        };
        if file.version.value != "v1" {
            let message = format!("version {} is not known: expected v1", file.version.value);
            return Err(spec.error_at(file.version.referenced, message));
        }
        if file.mig_configs.value.is_empty() {
            return Err(spec.error_at(file.mig_configs.referenced, "mig-configs has no entry"));
        }
        for (name, entries) in file.mig_configs.value {
            let count = entries.value.len();
            let wrong = if count == 0 {
                format!("the configuration \"{name}\" has no entry")
            } else if name.contains(is_terminal_control) {
                "the name of a configuration has characters that cannot be seen".to_owned()
            } else if count > MAX_ENTRIES {
                format!(
                    "the configuration \"{name}\" has {count} entries: at most {MAX_ENTRIES} are read"
                )
            } else {
                let entries = entries
                    .value
                    .into_iter()
                    .map(|entry| spec.parse_entry(entry));
                match entries.collect::<Result<_, _>>() {
                    Ok(entries) => {
                        spec.configs.insert(name, entries);
                    }
                    Err(error) => spec.faults.push((name, error)),
                }
                continue;
            };
            let error = spec.error_at(entries.referenced, wrong);
            spec.faults.push((name, error));
        }
        Ok(spec)
    }

    fn error_at(&self, at: Location, message: impl Into<String>) -> ProfileError {
        self.text.error_at(at, message)
    }

    fn parse_entry(&self, entry: Spanned<SpecEntry>) -> Result<ConfigEntry, ProfileError> {
        let at = entry.referenced;
        let entry = entry.value;
        let Flag::Is(mig_enabled) = entry.mig_enabled;
        let devices = match entry.devices.value {
            AllOrSome::All(word) if word == "all" => None,
            AllOrSome::All(word) => {
                let message = format!("devices: {word} is neither \"all\" nor a list of indices");
                return Err(self.error_at(entry.devices.referenced, message));
            }
            AllOrSome::Some(indices) => {
                let indices: Result<Vec<u32>, _> = indices
                    .iter()
                    .map(|Count::Is(index)| u32::try_from(*index))
                    .collect();
                Some(indices.map_err(|_| {
                    let message = "devices: an index of a GPU cannot be negative or so large";
                    self.error_at(entry.devices.referenced, message)
                })?)
            }
        };
        let mig_devices = match entry.mig_devices {
            Some(devices) if !mig_enabled && !devices.value.is_empty() => {
                let message = "mig-devices are requested although mig-enabled is false";
                return Err(self.error_at(devices.referenced, message));
            }
            Some(devices) => self.parse_mig_devices(devices)?,
            None if mig_enabled => {
                let message = "mig-devices is missing although mig-enabled is true";
                return Err(self.error_at(at, message));
            }
            None => Vec::new(),
        };
        Ok(ConfigEntry {
            span: self.text.span(at),
            filter: entry.device_filter.map_or_else(Vec::new, parse_filters),
            devices,
            mig_enabled,
            mig_devices,
        })
    }

    fn parse_mig_devices(
        &self,
        devices: Spanned<BTreeMap<String, Spanned<Count>>>,
    ) -> Result<Vec<MigDevice>, ProfileError> {
        let asked = !devices.value.is_empty();
        let mut all = Vec::new();
        for (name, count) in devices.value {
            let at = count.referenced;
            let Count::Is(count) = count.value;
            let device: MigDevice = name
                .parse()
                .map_err(|error: String| self.error_at(at, error))?;
            if !(0..=MAX_DEVICES_OF_KIND).contains(&count) {
                let message =
                    format!("{count} of {name} cannot be: from 0 to {MAX_DEVICES_OF_KIND}");
                return Err(self.error_at(at, message));
            }
            all.extend((0..count).map(|_| device.clone()));
        }
        if asked && all.is_empty() {
            return Err(self.error_at(devices.referenced, "every count in mig-devices is 0"));
        }
        Ok(all)
    }
}

/// The words of `device-filter`; an empty text is none.
fn parse_filters(filter: OneOrMany) -> Vec<DeviceFilter> {
    let words = match filter {
        OneOrMany::One(word) if word.is_empty() => Vec::new(),
        OneOrMany::One(word) => vec![word],
        OneOrMany::Many(words) => words,
    };
    words.into_iter().map(DeviceFilter::new).collect()
}

/// A word of `device-filter`: `0x20B210DE`, `0x20B210DE:0x147F10DE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFilter {
    text: String,
    /// The device id, and the subsystem id if there is one; `None` for other words, by which mig-parted selects no GPU.
    ids: Option<(PciId, Option<PciId>)>,
}

impl DeviceFilter {
    pub(super) fn new(text: String) -> Self {
        let ids = match text.split_once(':') {
            Some((device, subsystem)) => {
                parse_pci_id(device).zip(parse_pci_id(subsystem).map(Some))
            }
            None => parse_pci_id(&text).map(|device| (device, None)),
        };
        Self { text, ids }
    }

    /// The product names of its GPUs, as far as the catalog knows them.
    pub(super) fn product_names(&self) -> Vec<&'static str> {
        self.ids
            .map(|(device, subsystem)| products_of(device, subsystem))
            .unwrap_or_default()
    }

    pub(super) fn is_id(&self) -> bool {
        self.ids.is_some()
    }

    pub(super) fn has_subsystem(&self) -> bool {
        self.ids.is_some_and(|(_, subsystem)| subsystem.is_some())
    }
}

/// A PCI id in hexadecimal or decimal digits (`NewDeviceIDFromString`).
fn parse_pci_id(text: &str) -> Option<PciId> {
    if let Ok(id) = text.parse() {
        return Some(id);
    }
    if text.starts_with('0') || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().map(PciId)
}

impl fmt::Display for DeviceFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ids {
            Some((device, Some(subsystem))) => write!(f, "{device}:{subsystem}"),
            Some((device, None)) => device.fmt(f),
            None => write!(f, "{:?}", self.text),
        }
    }
}

/// A MIG device as mig-parted names it: `3g.40gb`, `1g.10gb+me`, or `1c.3g.40gb` for one that has part
/// of a GPU instance's SMs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MigDevice {
    /// The GPU instance profile.
    pub profile: ProfileName,
    /// The slices of its compute instance, if it does not have all.
    pub compute: Option<u32>,
}

impl FromStr for MigDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (compute, profile) = match text.split_once("c.") {
            Some((slices, profile)) => (Some(slices), profile),
            None => (None, text),
        };
        let profile: ProfileName = profile.parse().map_err(|_| not_a_mig_device(text))?;
        if profile.is_unreadable() {
            return Err(not_a_mig_device(text));
        }
        if profile.is_short() {
            return Err(format!(
                "\"{text}\" does not have its memory, which mig-parted requires: \"3g.40gb\", not \"3g\""
            ));
        }
        if !has_one_list(text) {
            return Err(format!(
                "\"{text}\" is not as mig-parted writes attributes: once each, in one list behind one sign"
            ));
        }
        let compute: Option<u32> = match compute.map(str::parse) {
            Some(Ok(0) | Err(_)) => return Err(not_a_mig_device(text)),
            Some(Ok(slices)) => Some(slices),
            None => None,
        };
        if compute.is_some_and(|slices| slices > profile.slices()) {
            return Err(format!(
                "\"{text}\" has more compute slices than its GPU instance"
            ));
        }
        if compute.is_some_and(|slices| !ComputeName { slices }.fits(profile.slices())) {
            return Err(format!(
                "\"{text}\": a GPU instance of that size offers no such compute instance"
            ));
        }
        // `3c.3g.40gb` is `3g.40gb`.
        let compute = compute.filter(|slices| *slices < profile.slices());
        Ok(Self { profile, compute })
    }
}

fn not_a_mig_device(text: &str) -> String {
    format!(
        "\"{text}\" is not a MIG device: expected one like \"3g.40gb\", \"1g.10gb+me\" or \"1c.3g.40gb\""
    )
}

/// True if a name has no attributes or one list in which each is once (`parseMigProfileAttributes` of go-nvlib).
fn has_one_list(name: &str) -> bool {
    let mut parts = name.split(['+', '-']).skip(1);
    let Some(list) = parts.next() else {
        return true;
    };
    let words: Vec<&str> = list.split(',').collect();
    let are_once = words
        .iter()
        .enumerate()
        .all(|(nth, word)| !word.is_empty() && !words[..nth].contains(word));
    are_once && parts.next().is_none()
}

impl fmt::Display for MigDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.compute {
            Some(slices) => write!(f, "{slices}c.{}", self.profile),
            None => self.profile.fmt(f),
        }
    }
}

/// A GPU instance with the compute instances that share it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PackedInstance {
    pub profile: ProfileName,
    /// The slices of its compute instances, largest first; empty for the one that has all its SMs.
    pub compute: Vec<u32>,
}

impl PackedInstance {
    /// True if it is shared by compute instances, and has slices left for that device.
    fn has_room_for(&self, device: &MigDevice) -> bool {
        let used: u32 = self.compute.iter().sum();
        let is_shared = !self.compute.is_empty() && self.profile == device.profile;
        is_shared
            && device
                .compute
                .is_some_and(|wanted| used + wanted <= self.profile.slices())
    }
}

/// The GPU instances that mig-parted makes for these MIG devices, largest first.
///
/// It goes through the devices from large to small and puts one into the GPU instance before it where
/// that is of the same profile and has slices left (`SetMigConfig`, `reuseGI`); where that does not
/// lead to a geometry that the GPU takes, it tries other orders. Putting each into the first instance
/// with room leads to the same without trying: it differs only where more than two `3g` would be
/// needed, which no GPU has.
pub fn pack(devices: &[MigDevice]) -> Vec<PackedInstance> {
    let mut sorted: Vec<&MigDevice> = devices.iter().collect();
    sorted.sort_by_key(|device| {
        let profile = &device.profile;
        let size = (Reverse(profile.slices()), Reverse(profile.gigabytes()));
        let slices = device.compute.unwrap_or(profile.slices());
        (size, profile.clone(), Reverse(slices))
    });
    let mut instances: Vec<PackedInstance> = Vec::new();
    for device in sorted {
        match instances
            .iter_mut()
            .find(|instance| instance.has_room_for(device))
        {
            Some(instance) => instance.compute.extend(device.compute),
            None => instances.push(PackedInstance {
                profile: device.profile.clone(),
                compute: device.compute.into_iter().collect(),
            }),
        }
    }
    instances
}

/// Returns the slices of the compute instances; none for a single one that has all SMs.
pub(super) fn compute_slices(instance: &GpuInstanceReading, all: Option<u32>) -> Vec<u32> {
    match instance.compute.as_slice() {
        [one] if Some(one.multiprocessors) >= all => Vec::new(),
        several => several.iter().map(|compute| compute.slices).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_hexadecimal_or_decimal_and_other_words_select_nothing() {
        let shown = |text: &str| DeviceFilter::new(text.to_owned()).to_string();
        assert_eq!(shown("548540638"), "0x20B210DE");
        assert_eq!(shown("0X20b210de:343871710"), "0x20B210DE:0x147F10DE");
        for word in [
            "A100",
            "",
            "-1",
            "+1",
            "0x20B210DE:x",
            "4294967296",
            "1:2:3",
        ] {
            assert!(!DeviceFilter::new(word.to_owned()).is_id(), "{word}");
        }
    }

    fn packed(devices: &str) -> String {
        let devices: Vec<MigDevice> = devices
            .split_whitespace()
            .map(|word| word.parse().unwrap())
            .collect();
        let show = |shared: &PackedInstance| format!("{}{:?}", shared.profile, shared.compute);
        pack(&devices)
            .iter()
            .map(show)
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn compute_profiles_share_gpu_instances_as_with_mig_parted() {
        assert_eq!(
            packed("1c.3g.40gb 1c.3g.40gb 1c.3g.40gb"),
            "3g.40gb[1, 1, 1]"
        );
        assert_eq!(
            packed("1c.3g.40gb 1c.3g.40gb 1c.3g.40gb 1c.3g.40gb"),
            "3g.40gb[1, 1, 1] 3g.40gb[1]"
        );
        assert_eq!(packed("1c.3g.40gb 2c.3g.40gb"), "3g.40gb[2, 1]");
        assert_eq!(packed("1c.3g.40gb 3g.40gb"), "3g.40gb[] 3g.40gb[1]");
        // Largest first, one after the other, would need three: mig-parted finds another order.
        assert_eq!(
            packed("2c.3g.40gb 2c.3g.40gb 1c.3g.40gb 1c.3g.40gb"),
            "3g.40gb[2, 1] 3g.40gb[2, 1]"
        );
        assert_eq!(
            packed("1g.10gb 1g.20gb 2g.20gb 1g.10gb+me 1c.2g.20gb"),
            "2g.20gb[] 2g.20gb[1] 1g.20gb[] 1g.10gb[] 1g.10gb+me[]"
        );
    }

    #[test]
    fn all_slices_are_the_plain_device() {
        let full: MigDevice = "3c.3g.40gb".parse().unwrap();
        assert_eq!(full.to_string(), "3g.40gb");
        for text in ["1c.3g.40gb", "1g.10gb+me", "1g.24gb+me.all", "2g.48gb-me"] {
            assert_eq!(text.parse::<MigDevice>().unwrap().to_string(), text);
        }
        for wrong in [
            "",
            "3g",
            "c.3g.40gb",
            "0c.3g.40gb",
            "4c.3g.40gb",
            "1c.1c.3g.40gb",
            "1g.10gb+me,me",
            "1g.10gb+me+me",
            "1g.10gb+me,",
            "all",
            "profile 15",
        ] {
            assert!(wrong.parse::<MigDevice>().is_err(), "{wrong}");
        }
    }
}
