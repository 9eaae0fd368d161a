//! mig-parted's configuration file: `version: v1` and named lists of entries, each with the GPUs it is
//! for and the MIG devices they get (`api/spec/v1/spec.go` of NVIDIA/mig-parted).

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};

use super::packing::MigDevice;
use crate::catalog::{PciId, products_of};
use crate::host::steers;
use crate::profile::{ProfileError, Source, Span};

/// A file, read and checked.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The file's text, for errors found later.
    pub source: Arc<Source>,
    /// The configurations by name.
    pub configs: BTreeMap<String, Vec<ConfigEntry>>,
}

/// One entry of a configuration.
#[derive(Clone, Debug)]
pub struct ConfigEntry {
    /// Where it stands.
    pub span: Span,
    /// `device-filter`: GPUs of other models are passed over; empty for all models.
    pub filter: Vec<DeviceFilter>,
    /// Which of the GPUs.
    pub devices: GpuChoice,
    /// True for MIG mode on.
    pub mig_enabled: bool,
    /// The MIG devices, each as often as it is wanted.
    pub mig_devices: Vec<MigDevice>,
}

/// A device id and maybe a subsystem id: `0x20B210DE`, `0x20B210DE:0x147F10DE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFilter {
    /// The PCI device id.
    pub device: PciId,
    /// The PCI subsystem id.
    pub subsystem: Option<PciId>,
}

impl DeviceFilter {
    /// The product names of its GPUs.
    pub(super) fn products(&self) -> Vec<&'static str> {
        products_of(self.device, self.subsystem)
    }
}

impl fmt::Display for DeviceFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.subsystem {
            Some(subsystem) => write!(f, "{}:{subsystem}", self.device),
            None => self.device.fmt(f),
        }
    }
}

/// `devices`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuChoice {
    /// Every GPU.
    All,
    /// Those with these indices.
    Index(Vec<u32>),
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
    device_filter: Option<Spanned<OneOrMany>>,
    devices: Spanned<AllOrSome>,
    mig_enabled: bool,
    mig_devices: Option<Spanned<BTreeMap<String, Spanned<i64>>>>,
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
    Some(Vec<u32>),
}

/// More of one MIG device than any GPU can have, by far.
const MOST: i64 = 64;

/// More entries than any fleet needs.
const MOST_ENTRIES: usize = 1000;

impl Spec {
    /// Reads and checks a file's text; `path` is for messages only.
    pub fn parse(path: &Path, text: String) -> Result<Self, ProfileError> {
        let source = Arc::new(Source::new(path, text));
        let options = serde_saphyr::options! { with_snippet: false };
        let file: SpecFile = serde_saphyr::from_str_with_options(source.text(), options)
            .map_err(|error| in_words(&source, &error))?;
        let mut spec = Self {
            source,
            configs: BTreeMap::new(),
        };
        if file.version.value != "v1" {
            let message = format!("version {} is not known: expected v1", file.version.value);
            return Err(spec.error(file.version.referenced, message));
        }
        if file.mig_configs.value.is_empty() {
            return Err(spec.error(file.mig_configs.referenced, "mig-configs has no entry"));
        }
        for (name, entries) in file.mig_configs.value {
            let count = entries.value.len();
            let wrong = if count == 0 {
                format!("the configuration \"{name}\" has no entry")
            } else if name.contains(steers) {
                "the name of a configuration has characters that cannot be seen".to_owned()
            } else if count > MOST_ENTRIES {
                format!(
                    "the configuration \"{name}\" has {count} entries: at most {MOST_ENTRIES} are read"
                )
            } else {
                let entries = entries.value.into_iter().map(|entry| spec.entry(entry));
                let entries = entries.collect::<Result<_, _>>()?;
                spec.configs.insert(name, entries);
                continue;
            };
            return Err(spec.error(entries.referenced, wrong));
        }
        Ok(spec)
    }

    /// The refusal of an entry that a profile has no words for.
    pub(super) fn refuse(
        &self,
        entry: &ConfigEntry,
        message: impl Into<String>,
        hint: &str,
    ) -> ProfileError {
        self.source.error(entry.span, message).with_hint(hint)
    }

    fn error(&self, at: Location, message: impl Into<String>) -> ProfileError {
        self.source.error(span(&self.source, at), message)
    }

    fn entry(&self, entry: Spanned<SpecEntry>) -> Result<ConfigEntry, ProfileError> {
        let at = entry.referenced;
        let entry = entry.value;
        let devices = match entry.devices.value {
            AllOrSome::All(word) if word == "all" => GpuChoice::All,
            AllOrSome::All(word) => {
                let message = format!("devices: {word} is neither \"all\" nor a list of indices");
                return Err(self.error(entry.devices.referenced, message));
            }
            AllOrSome::Some(indices) => GpuChoice::Index(indices),
        };
        let mig_devices = match entry.mig_devices {
            Some(devices) if !entry.mig_enabled && !devices.value.is_empty() => {
                let message = "mig-devices are asked for where mig-enabled is false";
                return Err(self.error(devices.referenced, message));
            }
            Some(devices) => self.mig_devices(devices)?,
            None if entry.mig_enabled => {
                let message = "mig-devices is missing where mig-enabled is true";
                return Err(self.error(at, message));
            }
            None => Vec::new(),
        };
        Ok(ConfigEntry {
            span: span(&self.source, at),
            filter: self.filter(entry.device_filter)?,
            devices,
            mig_enabled: entry.mig_enabled,
            mig_devices,
        })
    }

    fn filter(
        &self,
        filter: Option<Spanned<OneOrMany>>,
    ) -> Result<Vec<DeviceFilter>, ProfileError> {
        let Some(filter) = filter else {
            return Ok(Vec::new());
        };
        let words = match filter.value {
            OneOrMany::One(word) if word.is_empty() => Vec::new(),
            OneOrMany::One(word) => vec![word],
            OneOrMany::Many(words) => words,
        };
        let parse = |word: &String| {
            let (device, subsystem) = match word.split_once(':') {
                Some((device, subsystem)) => (device, Some(subsystem)),
                None => (word.as_str(), None),
            };
            let id = |text: &str| {
                let parsed = text.parse::<PciId>();
                parsed.map_err(|error| self.error(filter.referenced, error))
            };
            Ok(DeviceFilter {
                device: id(device)?,
                subsystem: subsystem.map(id).transpose()?,
            })
        };
        words.iter().map(parse).collect()
    }

    fn mig_devices(
        &self,
        devices: Spanned<BTreeMap<String, Spanned<i64>>>,
    ) -> Result<Vec<MigDevice>, ProfileError> {
        let asked = !devices.value.is_empty();
        let mut all = Vec::new();
        for (name, count) in devices.value {
            let at = count.referenced;
            let device: Result<MigDevice, String> = name.parse();
            let device = device.map_err(|error| self.error(at, error))?;
            if !(0..=MOST).contains(&count.value) {
                let message = format!("{} of {name} cannot be: from 0 to {MOST}", count.value);
                return Err(self.error(at, message));
            }
            all.extend((0..count.value).map(|_| device.clone()));
        }
        if asked && all.is_empty() {
            return Err(self.error(devices.referenced, "every count in mig-devices is 0"));
        }
        Ok(all)
    }
}

/// A place as our messages point at it: the start of what stands there.
fn span(source: &Source, at: Location) -> Span {
    let bytes = |number: Option<u64>| number.and_then(|number| usize::try_from(number).ok());
    let start = bytes(at.span().byte_offset()).unwrap_or(0);
    let line = source.text().get(start..).unwrap_or_default();
    let to_its_end = line.find('\n').unwrap_or(line.len());
    let length = bytes(at.span().byte_len()).filter(|length| *length > 0);
    let length = length.map_or(to_its_end, |length| length.min(to_its_end));
    Span::from(start..start + length)
}

/// The YAML reader's error in our words.
fn in_words(source: &Arc<Source>, error: &serde_saphyr::Error) -> ProfileError {
    let at = error.location();
    let span = at.map_or_else(Span::default, |at| span(source, at));
    let message = error.without_snippet().to_string();
    // It ends with the place, which is shown anyway.
    let message = message.split(" at line ").next().unwrap_or(&message);
    let message = message
        .split(", set DuplicateKeyPolicy")
        .next()
        .unwrap_or(message);
    source.serde_error(span, message)
}
