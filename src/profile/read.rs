//! Reads a profile file, and checks it.

use std::path::Path;
use std::sync::Arc;

use toml::Spanned;

use super::block::{Block, DeviceEntry, Profile, Want, WholeGpu};
use super::check::Check;
use super::diagnostic::{ProfileError, Source, Span};
use super::mps::Inherited;
use super::name::is_device_name;
use super::schema::{DeviceTable, GpuTable, ProfileFile};
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
        let source = Arc::new(Source::new(path, text));
        let file: ProfileFile = toml::from_str(source.text()).map_err(|error| {
            let span = error.span().map(Span::from).unwrap_or_default();
            source.serde_error(span, error.message())
        })?;
        let entries = file.gpu.iter().flat_map(|gpu| &gpu.get_ref().devices);
        for (count, most, what) in [
            (file.gpu.len(), MOST_BLOCKS, "[[gpu]] blocks"),
            (
                entries.map(Vec::len).sum(),
                MOST_DEVICES,
                "entries of devices",
            ),
        ] {
            if count > most {
                let message = format!("the profile has {count} {what}: at most {most} are read");
                return Err(source.error(Span::default(), message));
            }
        }
        let check = Check::new(&source);
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
            if block
                .select
                .is_shadowed_by(blocks.iter().map(|earlier| &earlier.select))
            {
                let message = "this block can never be reached: the blocks before it select every GPU it could";
                let error = source.error(block.span, message);
                check.note(error.with_hint("the first block that selects a GPU wins"));
            }
            blocks.push(block);
        }
        let serves = check.finish()?;
        Ok(Self {
            source,
            name: file.name,
            serves,
            blocks,
        })
    }
}

impl Check<'_> {
    fn block(&self, defaults: &Inherited, gpu: GpuTable) -> Option<Block> {
        let span = gpu.select.span().into();
        let settings = self.settings(defaults, gpu.mps.as_ref());
        let is_whole = gpu.mig == Some(false);
        let want = self.keep(self.want(&settings, span, is_whole, gpu.name, gpu.devices));
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
        let error = |message| self.error(span, message);
        match (is_whole, devices, name) {
            (true, Some(_), _) => Err(error("mig = false and devices exclude each other")),
            (true, None, name) => Ok(Want::Whole(WholeGpu {
                name: self.name(name)?,
                settings: settings.settings.clone(),
            })),
            (false, Some(_), Some(name)) => Err(self.error(
                name.span(),
                "a block with devices has no name of its own: name its devices",
            )),
            (false, Some(devices), None) if devices.is_empty() => {
                Err(error("devices = [] asks for nothing")
                    .with_hint("leave the block out, or write mig = false for the whole GPU"))
            }
            (false, Some(devices), None) => {
                let entries = devices.into_iter();
                let entries = entries.filter_map(|device| self.entry(settings, device));
                Ok(Want::Parts(entries.collect()))
            }
            (false, None, _) => Err(error("this block does not say what its GPUs become")
                .with_hint("add devices = [ … ], or mig = false for the whole GPU")),
        }
    }

    fn entry(&self, defaults: &Inherited, device: DeviceTable) -> Option<DeviceEntry> {
        let span = device.profile.span().into();
        let count = self.keep(self.count(&device));
        let profile: Result<ProfileName, _> = device.profile.get_ref().parse();
        let profile = self.keep(profile.map_err(|error| self.error(span, error.to_string())));
        let compute = device.compute.unwrap_or_default();
        let compute = profile
            .as_ref()
            .and_then(|profile| self.keep(self.compute(profile.slices(), span, &compute)));
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
            self.note(
                self.error(*span, message)
                    .with_hint("put {n} into the name"),
            );
        }
        Some(DeviceEntry {
            name,
            profile: profile?,
            span,
            at: device.at,
            count,
            compute,
            settings: settings?,
        })
    }

    fn count(&self, device: &DeviceTable) -> Result<u32, ProfileError> {
        let Some(count) = &device.count else {
            return Ok(1);
        };
        let message = match count.get_ref() {
            0 => "count = 0 asks for nothing: leave the entry out",
            2.. if device.at.is_some() => {
                "at pins one device: it cannot be there for a count above 1"
            }
            count => return Ok(*count),
        };
        Err(self.error(count.span(), message))
    }

    fn compute(
        &self,
        slices: u32,
        span: Span,
        names: &[Spanned<String>],
    ) -> Result<Vec<ComputeName>, ProfileError> {
        let parse = |name: &Spanned<String>| {
            let parsed: Result<ComputeName, String> = name.get_ref().parse();
            match parsed {
                Ok(compute) if !compute.fits(slices) => {
                    let message = format!("a {slices}g GPU instance has no {compute}");
                    Err(self.error(name.span(), message))
                }
                parsed => parsed.map_err(|error| self.error(name.span(), error)),
            }
        };
        let compute: Vec<ComputeName> = names.iter().map(parse).collect::<Result<_, _>>()?;
        let asked: u32 = compute.iter().map(|compute| compute.slices).sum();
        if asked > slices {
            let message =
                format!("compute asks for {asked} slices of a GPU instance that has {slices}");
            return Err(self.error(span, message));
        }
        Ok(compute)
    }

    fn name(&self, name: Option<Spanned<String>>) -> Result<Option<(String, Span)>, ProfileError> {
        let Some(name) = name else { return Ok(None) };
        let span = name.span().into();
        let name = name.into_inner();
        // "0" stands for whatever number comes in.
        if !is_device_name(&name.replace("{gpu}", "0").replace("{n}", "0")) {
            let message = "not a device name: up to 64 letters, digits, \".\", \"_\" and \"-\", and {gpu} \
                 or {n}; it may not begin with \".\", \"-\", \"GPU-\" or \"MIG-\"";
            return Err(self.error(span, message));
        }
        Ok(Some((name, span)))
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
