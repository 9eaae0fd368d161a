//! A profile as it was read: its blocks, their devices and names.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::Arc;

use super::diagnostic::{ProfileError, Source, Span};
use super::selector::Selector;
use crate::geometry::{ComputeName, ProfileName};
use crate::host::nearest;
use crate::settings::{KEYS, MemoryLimit, Serve, SettingKey, Settings};

/// A checked profile file.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The file's text, for errors that only planning finds.
    pub source: Arc<Source>,
    /// The profile's own name.
    pub name: Option<String>,
    /// The GPU models it is for, with their places; empty if it does not say.
    pub models: Vec<(String, Span)>,
    /// True for a CDI file, false for none, with its place; `None` leaves that as it is.
    pub cdi: Option<(bool, Span)>,
    /// Every `serve` that a device has, with its places: the caller decides which are allowed.
    pub serves: Vec<(Serve, Span)>,
    /// The blocks in the file's order: the first that selects a GPU applies.
    pub blocks: Vec<Block>,
}

/// A `[[gpu]]` block.
#[derive(Clone, Debug)]
pub struct Block {
    /// The selector of the GPUs.
    pub select: Selector,
    /// The selector's place in the file.
    pub span: Span,
    /// The devices it asks for.
    pub want: Want,
}

/// The devices that a block asks for.
#[derive(Clone, Debug)]
pub enum Want {
    /// Not partitioned: one device, the whole GPU.
    Whole(WholeGpu),
    /// Partitioned with MIG into these devices and nothing else; MIG mode without instances if there are none.
    Parts(Vec<DeviceEntry>),
}

/// A whole GPU as one device (`mig = false`).
#[derive(Clone, Debug)]
pub struct WholeGpu {
    /// The device's name, if the profile gives one, and its place in the file.
    pub name: Option<(String, Span)>,
    /// The settings of its daemon; `None` for no daemon.
    pub settings: Option<Settings>,
}

/// One entry of `devices`.
#[derive(Clone, Debug)]
pub struct DeviceEntry {
    /// The devices' name, if the profile gives one, and its place in the file.
    pub name: Option<(String, Span)>,
    /// The GPU instance profile.
    pub profile: ProfileName,
    /// The profile name's place in the file.
    pub span: Span,
    /// The start of its placement, if pinned.
    pub at: Option<u32>,
    /// The number of GPU instances.
    pub count: u32,
    /// The compute instances that share each GPU instance; empty for a single one with all SMs.
    pub compute: Vec<ComputeName>,
    /// The settings of the daemons; `None` for no daemons.
    pub settings: Option<Settings>,
}

impl Profile {
    /// True if a block partitions its GPUs.
    pub fn partitions(&self) -> bool {
        let mut wants = self.blocks.iter().map(|block| &block.want);
        wants.any(|want| matches!(want, Want::Parts(_)))
    }

    /// The settings of all daemons.
    pub fn settings(&self) -> impl Iterator<Item = &Settings> {
        let settings = self.blocks.iter().flat_map(|block| match &block.want {
            Want::Whole(whole) => vec![&whole.settings],
            Want::Parts(parts) => parts.iter().map(|part| &part.settings).collect(),
        });
        settings.flatten()
    }

    /// Drops each `serve` that every table inside overrides: it holds for no device.
    pub(super) fn forget_overridden_serves(&mut self) {
        let mut serves = std::mem::take(&mut self.serves);
        serves.retain(|(serve, _)| {
            let mut settings = self.settings();
            settings.any(|settings| settings.serve.as_ref() == Some(serve))
        });
        self.serves = serves;
    }

    /// Returns the memory limits of all devices, each once.
    pub fn memory_limits(&self) -> BTreeSet<MemoryLimit> {
        let limits = self
            .settings()
            .filter_map(|settings| settings.pinned_memory_limit);
        limits.collect()
    }

    /// Returns the number of the line on which a block begins.
    pub fn line(&self, block: usize) -> usize {
        self.source.line(self.blocks[block].span)
    }

    /// Names a block by its place and selector: `line 12: { all = true }`.
    pub fn heading(&self, block: usize) -> String {
        let select = self.source.written(self.blocks[block].span);
        let first_line = select.lines().next().unwrap_or_default();
        format!("line {}: {first_line}", self.line(block))
    }

    /// Returns an error at a place in this profile.
    pub fn error(&self, span: Span, message: impl Into<String>) -> ProfileError {
        self.source.error(span, message)
    }
}

/// `KEY=VALUE`: a setting of a running daemon, on the command line.
#[derive(Clone, Debug)]
pub struct SettingAssignment {
    key: &'static SettingKey,
    value: String,
}

impl SettingAssignment {
    /// Returns the keys that can be changed while a daemon runs.
    pub fn keys() -> Vec<&'static str> {
        let live = KEYS.iter().filter(|key| key.is_live());
        live.map(|key| key.name).collect()
    }

    /// Puts the value into settings.
    pub fn change(&self, settings: &mut Settings) {
        let checked = (self.key.parse)(settings, &self.value);
        debug_assert_eq!(checked, Ok(()));
    }
}

impl FromStr for SettingAssignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| "a setting is written KEY=VALUE".to_owned())?;
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            let live = Self::keys();
            return Err(match nearest(name, live.iter().copied()) {
                Some(near) => format!("there is no setting {name}: did you mean {near}?"),
                None => format!(
                    "there is no setting {name}: the settings are {}",
                    live.join(", ")
                ),
            });
        };
        if !key.is_live() {
            return Err(format!(
                "{name} cannot be changed while the daemon runs: write it into the profile and run up, which starts \
                 the daemon again"
            ));
        }
        (key.parse)(&mut Settings::default(), value).map_err(|wrong| wrong.of(name, value))?;
        Ok(Self {
            key,
            value: value.to_owned(),
        })
    }
}

/// A device's name as a profile gives it: `{gpu}` stands for the GPU's index, `{n}` for a number
/// that tells apart the devices which would otherwise share the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameTemplate<'a>(pub &'a str);

impl NameTemplate<'_> {
    /// True if it holds `{n}`.
    pub fn is_numbered(self) -> bool {
        self.0.contains("{n}")
    }

    /// The name of a device of the GPU with that index.
    pub fn fill(self, gpu: u32, number: u32) -> String {
        self.on(gpu).replace("{n}", &number.to_string())
    }

    /// True if it can give that name to a device of that GPU.
    pub fn makes(self, gpu: u32, name: &str) -> bool {
        let text = self.on(gpu);
        let Some((before, _)) = text.split_once("{n}") else {
            return text == name;
        };
        let digits: String = name
            .strip_prefix(before)
            .into_iter()
            .flat_map(str::chars)
            .take_while(char::is_ascii_digit)
            .collect();
        let is_it = |digits: &str| {
            let number: Option<u32> = digits.parse().ok();
            number.is_some_and(|number| {
                number.to_string() == digits && text.replace("{n}", digits) == name
            })
        };
        // What follows the number may begin with digits of its own.
        (1..=digits.len()).any(|end| is_it(&digits[..end]))
    }

    fn on(self, gpu: u32) -> String {
        self.0.replace("{gpu}", &gpu.to_string())
    }
}

/// The names given out on one node, each with whose it is.
#[derive(Debug, Default)]
pub struct Names {
    given: BTreeMap<String, String>,
}

impl Names {
    /// Gives a name to `to`, or returns its holder.
    pub fn give(&mut self, name: &str, to: &str) -> Result<(), String> {
        if let Some(holder) = self.given.get(name) {
            return Err(holder.clone());
        }
        self.given.insert(name.to_owned(), to.to_owned());
        Ok(())
    }

    /// Gives the first name of a numbered template that is free.
    pub fn give_next(&mut self, template: NameTemplate<'_>, gpu: u32, to: &str) -> String {
        let mut number = 0;
        loop {
            let name = template.fill(gpu, number);
            if self.give(&name, to).is_ok() {
                return name;
            }
            number += 1;
        }
    }
}

/// True if a text can name a device: it becomes a file name and a word on command lines.
pub fn is_device_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !text.is_empty()
        && text.len() <= 64
        && text.chars().all(plain)
        && !text.starts_with(['.', '-'])
        && !text.starts_with("GPU-")
        && !text.starts_with("MIG-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::ClientPriority;

    #[test]
    fn what_cannot_be_set_says_why() {
        for (text, why) in [
            ("active-thread-percentage", "a setting is written KEY=VALUE"),
            ("=25", "a setting is written KEY=VALUE"),
            (
                "active-thread-percentage=0",
                "active-thread-percentage must be from 0.1 to 100",
            ),
            (
                "active-thread-percentage=NaN",
                "active-thread-percentage must be from 0.1 to 100",
            ),
            (
                "pinned-memory-limit=2g",
                "pinned-memory-limit = \"2g\": its unit is M (MiB) or G (GiB): 2G?",
            ),
            (
                "client-priority=7",
                "client-priority = \"7\" is not one of \"normal\", \"below-normal\"",
            ),
            ("max-clients=0", "max-clients must be from 1 to 1024"),
            (
                "active-threads-percentage=5",
                "there is no setting active-threads-percentage: did you mean active-thread-percentage?",
            ),
        ] {
            assert_eq!(
                text.parse::<SettingAssignment>().unwrap_err(),
                why,
                "{text}"
            );
        }
        assert!(
            "serve=all"
                .parse::<SettingAssignment>()
                .unwrap_err()
                .contains("run up")
        );
    }

    #[test]
    fn what_is_said_is_what_is_set() {
        let mut settings = Settings::default();
        for text in [
            "active-thread-percentage=33.3",
            "pinned-memory-limit=1.5G",
            "client-priority=below-normal",
            "max-clients=8",
        ] {
            let assignment: SettingAssignment = text.parse().unwrap();
            assignment.change(&mut settings);
        }
        let wanted = Settings {
            active_thread_percentage: "33.3".parse().unwrap(),
            pinned_memory_limit: "1536M".parse().ok(),
            client_priority: ClientPriority::BelowNormal,
            max_clients: Some(8),
            ..Settings::default()
        };
        assert_eq!(settings, wanted);
        let none: SettingAssignment = "pinned-memory-limit=none".parse().unwrap();
        none.change(&mut settings);
        assert_eq!(settings.pinned_memory_limit, None);
    }

    #[test]
    fn n_counts_what_would_share_a_name() {
        let mut names = Names::default();
        names.give("w1", "another").unwrap();
        let mut next = |template, gpu| names.give_next(NameTemplate(template), gpu, "x");
        assert_eq!(next("small-{gpu}-{n}", 0), "small-0-0");
        assert_eq!(next("small-{gpu}-{n}", 0), "small-0-1");
        assert_eq!(next("small-{gpu}-{n}", 1), "small-1-0");
        assert_eq!(next("w{n}", 0), "w0");
        assert_eq!(next("w{n}", 1), "w2", "w1 is another's");
        assert_eq!(names.give("w2", "y"), Err("x".to_owned()));
    }

    #[test]
    fn a_name_is_known_by_its_template() {
        for (template, name) in [
            ("a", "a"),
            ("t-{gpu}", "t-3"),
            ("t-{gpu}-{n}", "t-3-17"),
            ("{n}{gpu}", "13"),
            ("x{n}-{n}", "x2-2"),
        ] {
            assert!(NameTemplate(template).makes(3, name), "{template} {name}");
        }
        for (template, name) in [
            ("a", "b"),
            ("t-{gpu}", "t-4"),
            ("t-{n}", "t-"),
            ("t-{n}", "t-01"),
            ("t-{n}", "t-1x"),
            ("x{n}-{n}", "x1-2"),
        ] {
            assert!(!NameTemplate(template).makes(3, name), "{template} {name}");
        }
    }

    #[test]
    fn a_device_name_is_a_plain_file_name_and_no_uuid() {
        for good in ["0", "0.4", "0.4.c1", "trainer-0", "a_b"] {
            assert!(is_device_name(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "-x",
            "a/b",
            "a b",
            "GPU-1",
            "MIG-1",
            "ü",
            &"x".repeat(65),
        ] {
            assert!(!is_device_name(bad), "{bad}");
        }
    }
}
