//! Reads a profile file with the settings that its tables inherit, and collects its mistakes, so that all are reported at
//! once.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use toml::de::DeTable;

use super::block::{Block, DeviceEntry, Profile, Want, WholeGpu};
use super::diagnostic::{ProfileError, Source, Span};
use super::inherited::Inherited;
use super::names::is_device_name;
use super::schema::{At, BlockTable, DeviceTable, KeyValue, ProfileTable};
use crate::geometry::{ComputeName, ProfileName};
use crate::settings::{Serve, Settings};

/// Far more than any fleet needs, and planned in an instant.
const MAX_BLOCKS: usize = 1000;
const MAX_DEVICE_ENTRIES: usize = 10_000;

impl Profile {
    /// Checks a profile's text; `path` is for messages only.
    pub fn parse(path: &Path, text: String) -> Result<Self, ProfileError> {
        let mut profile = parse_file(path, text, &|check, table, span| {
            check.check_profile(ProfileTable::of(check, table, span))
        })?;
        profile.forget_overridden_serves();
        Ok(profile)
    }
}

/// The part of the reader of a file that knows its tables.
type ReadTable<'r, T> =
    &'r dyn for<'a> Fn(&ProfileCheck<'a>, &'a DeTable<'a>, Span) -> Result<T, Noted>;

/// Reads a file, and returns what it says or all mistakes in it; `path` is for messages only.
pub(super) fn parse_file<T>(
    path: &Path,
    text: String,
    read: ReadTable<'_, T>,
) -> Result<T, ProfileError> {
    let source = Arc::new(Source::new(path, text));
    let (document, wrong) = DeTable::parse_recoverable(source.text());
    if !wrong.is_empty()
        && let Some(span) = source.yaml_key()
    {
        let error = source.error_at(span, "this seems to be YAML, and must be TOML");
        return Err(error.with_hint(
            "write KEY = VALUE, or convert a configuration of mig-parted with `mig-mps import`",
        ));
    }
    if let Some(error) = wrong
        .iter()
        .find_map(|error| source.quotation_error(error.span()?.into()))
    {
        return Err(error);
    }
    let mistakes = wrong.iter().map(|error| {
        let span = error.span().map(Span::from).unwrap_or_default();
        source.syntax_error(span, error.message())
    });
    // The parser goes on after a mistake, but what it then reads may be wrong.
    if let Some(error) = ProfileError::from_errors(mistakes.collect()) {
        return Err(error);
    }
    let check = ProfileCheck {
        source: &source,
        serves: RefCell::default(),
        mistakes: RefCell::default(),
    };
    let read = read(&check, document.get_ref(), document.span().into());
    check.into_result(read)
}

impl<'a> ProfileCheck<'a> {
    fn check_profile(&self, file: ProfileTable<'a>) -> Result<Profile, Noted> {
        let models = self.check_models(file.models);
        let defaults = self.inherit_settings(&Inherited::default(), file.mps);
        let blocks = self.check_blocks(&defaults, file.gpu);
        Ok(Profile {
            source: Arc::clone(self.source),
            name: file.name?.map(|(name, _)| name.to_owned()),
            models: models?,
            cdi: file.cdi?,
            serves: self.serves.take(),
            blocks: blocks?,
        })
    }

    fn check_models(&self, models: KeyValue<Vec<At<&str>>>) -> Result<Vec<At<String>>, Noted> {
        let Some((models, span)) = models? else {
            return Ok(Vec::new());
        };
        if models.is_empty() {
            let hint = "omit models in a profile for every model";
            let error = self.error_at(span, "models = [] selects no model");
            return Err(self.note(error.with_hint(hint)));
        }
        Ok(models
            .into_iter()
            .map(|(key, span)| (key.to_owned(), span))
            .collect())
    }

    fn check_blocks(
        &self,
        defaults: &Inherited,
        gpus: KeyValue<Vec<At<BlockTable<'a>>>>,
    ) -> Result<Vec<Block>, Noted> {
        let gpus = gpus?.map_or_else(Vec::new, |(gpus, _)| gpus);
        if gpus.is_empty() {
            let message = "the profile selects no GPU: it has no [[gpu]] block";
            return self.refuse(Span::default(), message);
        }
        self.check_count(gpus.len(), MAX_BLOCKS, "[[gpu]] blocks")?;
        let mut blocks: Vec<Block> = Vec::new();
        for gpu in gpus {
            let Ok(block) = self.check_block(defaults, gpu) else {
                continue;
            };
            if block
                .select
                .is_shadowed_by(blocks.iter().map(|earlier| &earlier.select))
            {
                let message =
                    "this block can never be reached: the blocks before it select all its GPUs";
                let error = self.error_at(block.span, message);
                self.note(
                    error.with_hint("move the block up; the first block that selects a GPU wins"),
                );
            }
            blocks.push(block);
        }
        let entries = blocks.iter().map(|block| match &block.want {
            Want::Parts(parts) => parts.len(),
            Want::Whole(_) => 0,
        });
        self.check_count(entries.sum(), MAX_DEVICE_ENTRIES, "entries of devices")?;
        Ok(blocks)
    }

    fn check_count(&self, count: usize, most: usize, what: &str) -> Result<(), Noted> {
        if count > most {
            let message = format!("the profile has {count} {what}: at most {most} are read");
            return self.refuse(Span::default(), message);
        }
        Ok(())
    }

    fn check_block(
        &self,
        defaults: &Inherited,
        (gpu, span): At<BlockTable<'a>>,
    ) -> Result<Block, Noted> {
        let settings = self.inherit_settings(defaults, gpu.mps);
        let span = gpu.select.as_ref().map_or(span, |(_, span)| *span);
        let select = gpu.select.and_then(|select| self.check_selector(select));
        let (name, devices) = (self.check_name(gpu.name), gpu.devices?);
        let is_whole = gpu.mig?.is_some_and(|(mig, _)| !mig);
        let joint_span = match &gpu.joint {
            Ok(Some((_, joint_span))) => *joint_span,
            _ => span,
        };
        let is_joint = self.check_joint(gpu.joint, is_whole, name.as_ref().ok());
        let want = match (is_whole, devices, name?) {
            (true, Some(_), _) => {
                return self.refuse(span, "mig = false and devices exclude each other");
            }
            (true, None, name) => {
                let settings = settings.for_whole_gpu();
                if let (Ok(true), None) = (&is_joint, &settings) {
                    let error = self.error_at(joint_span, "a joint device needs a daemon");
                    return Err(self.note(error.with_hint("remove mps = false, or joint")));
                }
                let settings = self.check_daemon_for_name(name.as_ref(), settings)?;
                Want::Whole(WholeGpu {
                    name,
                    settings,
                    is_joint: is_joint?,
                })
            }
            (false, Some(_), Some((_, span))) => {
                let message = "a block with devices cannot have a name: add names to its devices";
                return self.refuse(span, message);
            }
            (false, Some((devices, _)), None) => {
                // Each is checked, also after a wrong one.
                let entries: Vec<Result<DeviceEntry, Noted>> = devices
                    .into_iter()
                    .map(|(device, _)| self.check_entry(&settings, device))
                    .collect();
                Want::Parts(entries.into_iter().collect::<Result<_, _>>()?)
            }
            (false, None, _) => {
                let error = self.error_at(span, "this block does not describe its devices");
                let hint = "add devices = [ … ], or mig = false for the whole GPU";
                return Err(self.note(error.with_hint(hint)));
            }
        };
        Ok(Block {
            select: select?,
            span,
            want,
        })
    }

    fn check_entry(
        &self,
        defaults: &Inherited,
        device: DeviceTable<'a>,
    ) -> Result<DeviceEntry, Noted> {
        let is_pinned = !matches!(device.at, Ok(None));
        let count = self.check_instance_count(device.count, is_pinned);
        let profile = device.profile.and_then(|(name, span)| {
            name.parse::<ProfileName>()
                .map(|profile| (profile, span))
                .or_else(|error| self.refuse(span, error))
        });
        let compute = self.check_compute(profile.as_ref().ok(), device.compute);
        let name = self.check_name(device.name);
        let settings = self
            .inherit_settings(defaults, device.mps)
            .for_mig_device(self);
        let (count, compute, name) = (count?, compute?, name?);
        let devices = count as usize * compute.len().max(1);
        if let Some((name, span)) = &name
            && devices > 1
            && !name.contains("{n}")
        {
            let message = format!("{devices} devices would be named \"{name}\"");
            let error = self.error_at(*span, message);
            self.note(error.with_hint("add {n} to the name"));
        }
        let ((profile, span), at) = (profile?, device.at?.map(|(at, _)| at));
        let settings = settings?;
        Ok(DeviceEntry {
            settings: self.check_daemon_for_name(name.as_ref(), settings)?,
            name,
            profile,
            span,
            at,
            count,
            compute,
        })
    }

    /// Returns whether the GPUs of a block are one device, which needs a name.
    fn check_joint(
        &self,
        joint: KeyValue<bool>,
        is_whole: bool,
        name: Option<&Option<At<String>>>,
    ) -> Result<bool, Noted> {
        let Some((true, span)) = joint? else {
            return Ok(false);
        };
        if !is_whole {
            let message = "joint needs whole GPUs: CUDA gives a program only one MIG device";
            let error = self.error_at(span, message);
            return Err(self.note(error.with_hint("add mig = false")));
        }
        if name == Some(&None) {
            let error = self.error_at(span, "a joint device needs a name");
            return Err(self.note(error.with_hint("add a name: name = \"trainers\"")));
        }
        Ok(true)
    }

    /// Refuses a name for a device without a daemon.
    fn check_daemon_for_name(
        &self,
        name: Option<&At<String>>,
        settings: Option<Settings>,
    ) -> Result<Option<Settings>, Noted> {
        match (name, settings) {
            (Some((_, span)), None) => {
                let message = "mps is false here: only a device with a daemon can have a name";
                self.refuse(*span, message)
            }
            (_, settings) => Ok(settings),
        }
    }

    fn check_instance_count(&self, count: KeyValue<u32>, is_pinned: bool) -> Result<u32, Noted> {
        let (message, span) = match count? {
            None => return Ok(1),
            Some((0, span)) => ("count = 0 requests nothing; remove the entry", span),
            Some((2.., span)) if is_pinned => (
                "at pins one device: it cannot be there for a count above 1",
                span,
            ),
            Some((count, _)) => return Ok(count),
        };
        self.refuse(span, message)
    }

    fn check_compute(
        &self,
        profile: Option<&At<ProfileName>>,
        names: KeyValue<Vec<At<&str>>>,
    ) -> Result<Vec<ComputeName>, Noted> {
        let names = names?.map_or_else(Vec::new, |(names, _)| names);
        let Some((profile, span)) = profile else {
            return Err(Noted);
        };
        let slices = profile.slices();
        // Each is checked, also after a wrong one.
        let checked: Vec<Result<ComputeName, Noted>> = names
            .into_iter()
            .map(|(name, span)| self.check_compute_name(slices, name, span))
            .collect();
        let compute: Vec<ComputeName> = checked.into_iter().collect::<Result<_, _>>()?;
        let asked: u32 = compute.iter().map(|compute| compute.slices).sum();
        if asked > slices {
            let message =
                format!("compute asks for {asked} slices of a GPU instance that has {slices}");
            return self.refuse(*span, message);
        }
        Ok(compute)
    }

    /// Reads the name of a compute instance in a GPU instance of so many slices.
    fn check_compute_name(
        &self,
        slices: u32,
        name: &str,
        span: Span,
    ) -> Result<ComputeName, Noted> {
        match name.parse::<ComputeName>() {
            Ok(compute) if compute.fits(slices) => Ok(compute),
            Ok(compute) => {
                let known: Vec<String> = (1..=slices)
                    .map(|slices| ComputeName { slices })
                    .filter(|name| name.fits(slices))
                    .map(|name| name.to_string())
                    .collect();
                let known = known.join(", ");
                let message = format!("a {slices}g GPU instance has no {compute}: it has {known}");
                self.refuse(span, message)
            }
            Err(error) => self.refuse(span, error),
        }
    }

    /// Checks the name of a device, if it has one.
    fn check_name(&self, name: KeyValue<&str>) -> KeyValue<String> {
        let Some((name, span)) = name? else {
            return Ok(None);
        };
        // "0" stands for whatever number comes in.
        if !is_device_name(&name.replace("{gpu}", "0").replace("{n}", "0")) {
            let message = "not a device name: up to 64 letters, digits, \".\", \"_\" and \"-\", and {gpu} \
                 or {n}; it may not begin with \".\", \"-\", \"GPU-\", \"MIG-\" or \"JOINT-\"";
            return self.refuse(span, message);
        }
        Ok(Some((name.to_owned(), span)))
    }
}

/// The state of a profile's checks.
pub(super) struct ProfileCheck<'a> {
    pub(super) source: &'a Arc<Source>,
    pub(super) serves: RefCell<Vec<(Serve, Span)>>,
    mistakes: RefCell<Vec<ProfileError>>,
}

/// The value is missing because of a mistake that has been noted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noted;

impl ProfileCheck<'_> {
    /// Notes a mistake.
    pub(super) fn refuse<T>(
        &self,
        span: impl Into<Span>,
        message: impl Into<String>,
    ) -> Result<T, Noted> {
        Err(self.note(self.error_at(span, message)))
    }

    pub(super) fn note(&self, mistake: ProfileError) -> Noted {
        self.mistakes.borrow_mut().push(mistake);
        Noted
    }

    /// Returns what was read, or all mistakes.
    pub(super) fn into_result<T>(self, read: Result<T, Noted>) -> Result<T, ProfileError> {
        match (ProfileError::from_errors(self.mistakes.into_inner()), read) {
            (None, Ok(read)) => Ok(read),
            (Some(error), _) => Err(error),
            (None, Err(Noted)) => unreachable!("a mistake was noted"),
        }
    }

    pub(super) fn error_at(
        &self,
        span: impl Into<Span>,
        message: impl Into<String>,
    ) -> ProfileError {
        self.source.error_at(span, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_is_shown_once_and_in_file_order() {
        let text = r#"
[mps]
compute-mode = "exclusive-process"
cpu = "0"

[[gpu]]
select = { product = "(" }
mps = { server = "later", nofile = 1 }
devices = [
  { name = "a b", profile = "3h", mps = { cpus = "7-0" } },
  { name = "a", profile = "1g", count = 2 },
]

[[gpu]]
select = { all = true }
"#;
        let error = Profile::parse(Path::new("p.toml"), text.to_owned()).unwrap_err();
        let lines = error.to_string();
        let places: Vec<&str> = lines
            .lines()
            .filter_map(|line| {
                line.strip_prefix("p.toml:")?
                    .split_once(": ")
                    .map(|(at, _)| at)
            })
            .collect();
        assert_eq!(
            places,
            [
                "3:16", "4:1", "7:22", "8:18", "8:36", "10:12", "10:29", "10:50", "11:12", "15:10"
            ],
            "{lines}"
        );
    }
}
