//! Reads a profile file, and checks it.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use toml::Spanned;

use super::block::{Block, DeviceEntry, Profile, Want, WholeGpu};
use super::check::Check;
use super::diagnostic::{ProfileError, Source, Span};
use super::mps::Inherited;
use super::name::is_device_name;
use super::schema::{DeviceTable, GpuTable, ProfileFile};
use super::selector::Selector;
use crate::geometry::{ComputeName, ProfileName};
use crate::host::read_text;

/// Far more than any fleet needs, and planned in an instant.
const MOST_BLOCKS: usize = 1000;
const MOST_DEVICES: usize = 10_000;

impl Profile {
    /// Reads and checks a profile file.
    pub fn load(path: &Path) -> Result<Self, ProfileError> {
        let text = std::fs::File::open(path).and_then(read_text);
        let text = text.map_err(|error| ProfileError::Unreadable {
            path: path.to_owned(),
            error,
        })?;
        Self::parse(path, text)
    }

    /// Checks a profile's text; `path` is for messages only.
    pub fn parse(path: &Path, text: String) -> Result<Self, ProfileError> {
        read(&Arc::new(Source::new(path, text)))
    }
}

/// Reads and checks a profile's text.
fn read(source: &Arc<Source>) -> Result<Profile, ProfileError> {
    let file: ProfileFile =
        toml::from_str(source.text()).map_err(|error| in_words(source, &error))?;
    let devices = file
        .gpu
        .iter()
        .filter_map(|gpu| gpu.get_ref().devices.as_ref());
    let devices: usize = devices.map(Vec::len).sum();
    for (count, most, what) in [
        (file.gpu.len(), MOST_BLOCKS, "[[gpu]] blocks"),
        (devices, MOST_DEVICES, "entries of devices"),
    ] {
        if count > most {
            let message = format!("the profile has {count} {what}: at most {most} are read");
            return Err(source.error(Span::default(), message));
        }
    }
    let check = Check::new(source);
    let defaults = check.settings(&Inherited::default(), file.mps.as_ref());
    if file.gpu.is_empty() {
        let message = "the profile selects no GPU: it has no [[gpu]] block";
        return Err(source.error(Span::default(), message));
    }
    let mut blocks: Vec<Block> = Vec::new();
    for gpu in file.gpu {
        let Some(block) = check.block(&defaults, gpu.into_inner()) else {
            continue;
        };
        let earlier: Vec<&Selector> = blocks.iter().map(|block| &block.select).collect();
        if block.select.is_shadowed_by(&earlier) {
            let message =
                "this block can never be reached: the blocks before it select every GPU it could";
            let error = source.error(block.span, message);
            let error = error.with_hint("the first block that selects a GPU has it");
            check.keep(Err::<(), _>(error));
        }
        blocks.push(block);
    }
    Ok(Profile {
        source: Arc::clone(source),
        name: file.name,
        serves: check.finish()?,
        blocks,
    })
}

impl Check<'_> {
    fn block(&self, defaults: &Inherited, gpu: GpuTable) -> Option<Block> {
        let span: Span = gpu.select.span().into();
        let settings = self.settings(defaults, gpu.mps.as_ref());
        let is_whole = gpu.mig.is_some_and(|mig| !mig.into_inner());
        let want = self.want(&settings, span, is_whole, gpu.name, gpu.devices);
        let want = self.keep(want);
        let select = self.keep(self.selector(gpu.select));
        Some(Block {
            select: select?,
            span,
            want: want?,
        })
    }

    fn want(
        &self,
        settings: &Inherited,
        span: Span,
        is_whole: bool,
        name: Option<Spanned<String>>,
        devices: Option<Vec<DeviceTable>>,
    ) -> Result<Want, ProfileError> {
        let error = |message| self.source.error(span, message);
        match (is_whole, devices) {
            (true, Some(_)) => Err(error("mig = false and devices exclude each other")),
            (true, None) => Ok(Want::Whole(WholeGpu {
                name: self.name(name)?,
                settings: settings.settings.clone(),
            })),
            (false, Some(devices)) => {
                if let Some(name) = name {
                    let message = "a block with devices has no name of its own: name its devices";
                    return Err(self.error(name.span(), message));
                }
                if devices.is_empty() {
                    return Err(error("devices = [] asks for nothing")
                        .with_hint("leave the block out, or write mig = false for the whole GPU"));
                }
                let entries = devices.into_iter();
                let entries = entries.filter_map(|device| self.entry(settings, device));
                Ok(Want::Parts(entries.collect()))
            }
            (false, None) => Err(error("this block does not say what its GPUs become")
                .with_hint("add devices = [ … ], or mig = false for the whole GPU")),
        }
    }

    fn entry(&self, defaults: &Inherited, device: DeviceTable) -> Option<DeviceEntry> {
        let span = device.profile.span();
        let count = self.keep(self.count(&device));
        let profile: Result<ProfileName, _> = device.profile.get_ref().parse();
        let profile =
            self.keep(profile.map_err(|error| self.error(span.clone(), error.to_string())));
        let compute = device.compute.unwrap_or_default();
        let compute = profile
            .as_ref()
            .and_then(|profile| self.keep(self.compute(profile, &span, &compute)));
        let name = self.keep(self.name(device.name));
        let settings = self.settings(defaults, device.mps.as_ref());
        let settings = self.keep(settings.in_mig(self));
        let (count, compute, name) = (count?, compute?, name?);
        let devices = count as usize * compute.len().max(1);
        if let Some((name, span)) = &name
            && devices > 1
            && !name.contains("{n}")
        {
            let message = format!("{devices} devices would be named \"{name}\"");
            let error = self.source.error(*span, message);
            self.keep(Err::<(), _>(error.with_hint("put {n} into the name")));
        }
        Some(DeviceEntry {
            name,
            profile: profile?,
            span: span.into(),
            at: device.at,
            count,
            compute,
            settings: settings?,
        })
    }

    fn count(&self, device: &DeviceTable) -> Result<u32, ProfileError> {
        let count = device.count.as_ref().map_or(1, |count| *count.get_ref());
        let message = match count {
            0 => "count = 0 asks for nothing: leave the entry out",
            2.. if device.at.is_some() => {
                "at pins one device: it cannot be there for a count above 1"
            }
            _ => return Ok(count),
        };
        let span = device.count.as_ref().map(Spanned::span).unwrap_or_default();
        Err(self.error(span, message))
    }

    fn compute(
        &self,
        profile: &ProfileName,
        span: &Range<usize>,
        names: &[Spanned<String>],
    ) -> Result<Vec<ComputeName>, ProfileError> {
        let mut compute: Vec<ComputeName> = Vec::new();
        for name in names {
            let parsed: Result<ComputeName, String> = name.get_ref().parse();
            let parsed = parsed.map_err(|error| self.error(name.span(), error))?;
            if !parsed.fits(profile.slices()) {
                let message = format!("a {}g GPU instance has no {parsed}", profile.slices());
                return Err(self.error(name.span(), message));
            }
            compute.push(parsed);
        }
        let slices: u32 = compute.iter().map(|compute| compute.slices).sum();
        if slices > profile.slices() {
            let message = format!(
                "compute asks for {slices} slices of a GPU instance that has {}",
                profile.slices()
            );
            return Err(self.error(span.clone(), message));
        }
        Ok(compute)
    }

    fn name(&self, name: Option<Spanned<String>>) -> Result<Option<(String, Span)>, ProfileError> {
        let Some(name) = name else { return Ok(None) };
        let span = name.span();
        let name = name.into_inner();
        // "0" stands for whatever number comes in.
        if !is_device_name(&name.replace("{gpu}", "0").replace("{n}", "0")) {
            let message = "not a device name: up to 64 letters, digits, \".\", \"_\" and \"-\", and {gpu} \
                 or {n}; it may not begin with \".\", \"-\", \"GPU-\" or \"MIG-\"";
            return Err(self.error(span, message));
        }
        Ok(Some((name, span.into())))
    }
}

/// The TOML reader's error in our words, with the nearest right key for a wrong one.
fn in_words(source: &Arc<Source>, error: &toml::de::Error) -> ProfileError {
    let span = error.span().map(Span::from).unwrap_or_default();
    source.serde_error(span, error.message())
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
