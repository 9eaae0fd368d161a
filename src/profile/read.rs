//! Reads a profile file, and checks it.

use std::cell::RefCell;
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
    let check = Check {
        source,
        serves: RefCell::default(),
    };
    let defaults = check.settings(&Inherited::default(), file.mps.as_ref())?;
    if file.gpu.is_empty() {
        let message = "the profile selects no GPU: it has no [[gpu]] block";
        return Err(source.error(Span::default(), message));
    }
    let mut blocks: Vec<Block> = Vec::new();
    for gpu in file.gpu {
        let block = check.block(&defaults, gpu.into_inner())?;
        let earlier: Vec<&Selector> = blocks.iter().map(|block| &block.select).collect();
        if block.select.is_shadowed_by(&earlier) {
            let message =
                "this block can never be reached: the blocks before it select every GPU it could";
            return Err(source
                .error(block.span, message)
                .with_hint("the first block that selects a GPU has it"));
        }
        blocks.push(block);
    }
    Ok(Profile {
        source: Arc::clone(source),
        name: file.name,
        serves: check.serves.into_inner(),
        blocks,
    })
}

impl Check<'_> {
    fn block(&self, defaults: &Inherited, gpu: GpuTable) -> Result<Block, ProfileError> {
        let span: Span = gpu.select.span().into();
        let select = self.selector(gpu.select)?;
        let settings = self.settings(defaults, gpu.mps.as_ref())?;
        let whole = gpu.mig.as_ref().is_some_and(|mig| !*mig.get_ref());
        let want = match (whole, gpu.devices) {
            (true, Some(_)) => {
                return Err(self
                    .source
                    .error(span, "mig = false and devices exclude each other"));
            }
            (true, None) => Want::Whole(WholeGpu {
                name: self.name(gpu.name)?,
                settings: settings.settings,
            }),
            (false, Some(devices)) => {
                if let Some(name) = gpu.name {
                    let message = "a block with devices has no name of its own: name its devices";
                    return Err(self.error(name.span(), message));
                }
                if devices.is_empty() {
                    return Err(self
                        .source
                        .error(span, "devices = [] asks for nothing")
                        .with_hint("leave the block out, or write mig = false for the whole GPU"));
                }
                let parts = devices
                    .into_iter()
                    .map(|device| self.entry(&settings, device));
                Want::Parts(parts.collect::<Result<_, _>>()?)
            }
            (false, None) => {
                return Err(self
                    .source
                    .error(span, "this block does not say what its GPUs become")
                    .with_hint("add devices = [ … ], or mig = false for the whole GPU"));
            }
        };
        Ok(Block { select, span, want })
    }

    fn entry(
        &self,
        defaults: &Inherited,
        device: DeviceTable,
    ) -> Result<DeviceEntry, ProfileError> {
        let span = device.profile.span();
        let profile: ProfileName = device
            .profile
            .get_ref()
            .parse()
            .map_err(|error| self.error(span.clone(), format!("{error}")))?;
        let count = device.count.as_ref().map_or(1, |count| *count.get_ref());
        if let Some(written) = &device.count
            && (count == 0 || (count > 1 && device.at.is_some()))
        {
            let message = match count {
                0 => "count = 0 asks for nothing: leave the entry out",
                _ => "at pins one device: it cannot be there for a count above 1",
            };
            return Err(self.error(written.span(), message));
        }
        let mut compute: Vec<ComputeName> = Vec::new();
        for name in device.compute.unwrap_or_default() {
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
            return Err(self.error(span, message));
        }
        let devices = count as usize * compute.len().max(1);
        let name = self.name(device.name)?;
        if let Some((name, span)) = &name
            && devices > 1
            && !name.contains("{n}")
        {
            return Err(self
                .source
                .error(
                    *span,
                    format!("{devices} devices would be named \"{name}\""),
                )
                .with_hint("put {n} into the name"));
        }
        Ok(DeviceEntry {
            name,
            profile,
            span: span.into(),
            at: device.at,
            count,
            compute,
            settings: self.settings(defaults, device.mps.as_ref())?.in_mig(self)?,
        })
    }

    fn name(&self, name: Option<Spanned<String>>) -> Result<Option<(String, Span)>, ProfileError> {
        let Some(name) = name else { return Ok(None) };
        let span = name.span();
        let name = name.into_inner();
        // "0" stands for whatever number comes in.
        if !is_device_name(&name.replace("{gpu}", "0").replace("{n}", "0")) {
            let message = "not a device name: letters, digits, \".\", \"_\" and \"-\", at most 64 of them, \
                 and {gpu} or {n}; it may not begin with \".\", \"-\", \"GPU-\" or \"MIG-\"";
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
