//! mig-parted's configuration file: `version: v1` and named lists of entries, each with the GPUs it is
//! for and the MIG devices they get (`api/spec/v1/spec.go` of NVIDIA/mig-parted).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_saphyr::options::DuplicateKeyPolicy;
use serde_saphyr::{Location, Spanned};

use super::device_filter::DeviceFilter;
use super::packing::MigDevice;
use super::yaml::{Count, Flag, first_document};
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

/// More of one MIG device than any GPU can have, by far.
const MOST: i64 = 64;

/// More entries than any fleet needs.
const MOST_ENTRIES: usize = 1000;

impl Spec {
    /// Reads and checks a file's text; `path` is for messages only.
    pub fn parse(path: &Path, text: String) -> Result<Self, ProfileError> {
        let source = Arc::new(Source::new(path, text));
        let options = serde_saphyr::options! {
            with_snippet: false,
            duplicate_keys: DuplicateKeyPolicy::LastWins,
            legacy_octal_numbers: true,
        };
        let document = first_document(source.text());
        let file: SpecFile = serde_saphyr::from_str_with_options(document, options)
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
        let Flag(mig_enabled) = entry.mig_enabled;
        let devices = match entry.devices.value {
            AllOrSome::All(word) if word == "all" => GpuChoice::All,
            AllOrSome::All(word) => {
                let message = format!("devices: {word} is neither \"all\" nor a list of indices");
                return Err(self.error(entry.devices.referenced, message));
            }
            AllOrSome::Some(indices) => {
                let indices = indices.iter().map(|index| u32::try_from(index.0));
                let indices: Result<Vec<u32>, _> = indices.collect();
                GpuChoice::Index(indices.map_err(|_| {
                    let message = "devices: an index of a GPU cannot be negative or so large";
                    self.error(entry.devices.referenced, message)
                })?)
            }
        };
        let mig_devices = match entry.mig_devices {
            Some(devices) if !mig_enabled && !devices.value.is_empty() => {
                let message = "mig-devices are asked for where mig-enabled is false";
                return Err(self.error(devices.referenced, message));
            }
            Some(devices) => self.mig_devices(devices)?,
            None if mig_enabled => {
                let message = "mig-devices is missing where mig-enabled is true";
                return Err(self.error(at, message));
            }
            None => Vec::new(),
        };
        Ok(ConfigEntry {
            span: span(&self.source, at),
            filter: entry.device_filter.map_or_else(Vec::new, filters),
            devices,
            mig_enabled,
            mig_devices,
        })
    }

    fn mig_devices(
        &self,
        devices: Spanned<BTreeMap<String, Spanned<Count>>>,
    ) -> Result<Vec<MigDevice>, ProfileError> {
        let asked = !devices.value.is_empty();
        let mut all = Vec::new();
        for (name, count) in devices.value {
            let at = count.referenced;
            let Count(count) = count.value;
            let device: Result<MigDevice, String> = name.parse();
            let device = device.map_err(|error| self.error(at, error))?;
            if !(0..=MOST).contains(&count) {
                let message = format!("{count} of {name} cannot be: from 0 to {MOST}");
                return Err(self.error(at, message));
            }
            all.extend((0..count).map(|_| device.clone()));
        }
        if asked && all.is_empty() {
            return Err(self.error(devices.referenced, "every count in mig-devices is 0"));
        }
        Ok(all)
    }
}

/// The words of `device-filter`; an empty text is none.
fn filters(filter: OneOrMany) -> Vec<DeviceFilter> {
    let words = match filter {
        OneOrMany::One(word) if word.is_empty() => Vec::new(),
        OneOrMany::One(word) => vec![word],
        OneOrMany::Many(words) => words,
    };
    words.into_iter().map(DeviceFilter::new).collect()
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
    source.serde_error(span, message)
}
