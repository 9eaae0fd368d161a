//! A profile as it was read: its blocks and their devices.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;

use super::diagnostic::{ProfileError, Source, Span};
use super::selector::Selector;
use crate::failure::Problem;
use crate::geometry::{ComputeName, ProfileName};
use crate::host::closest_match;
use crate::settings::{
    KEYS, MemoryLimit, SHARE, Serve, SettingKey, Settings, find_setting, setting_for_word,
};

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

impl Block {
    /// Returns the name of its joint device, if it asks for one.
    pub fn joint_name(&self) -> Option<&str> {
        match &self.want {
            Want::Whole(whole) if whole.is_joint => whole.name.as_ref().map(|(name, _)| &**name),
            _ => None,
        }
    }
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
    /// True if all GPUs of the block are one device.
    pub is_joint: bool,
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
    pub fn partitions_gpus(&self) -> bool {
        self.blocks
            .iter()
            .map(|block| &block.want)
            .any(|want| matches!(want, Want::Parts(_)))
    }

    /// The settings of all daemons.
    pub fn daemon_settings(&self) -> impl Iterator<Item = &Settings> {
        self.blocks
            .iter()
            .flat_map(|block| match &block.want {
                Want::Whole(whole) => vec![&whole.settings],
                Want::Parts(parts) => parts.iter().map(|part| &part.settings).collect(),
            })
            .flatten()
    }

    /// The names of the joint devices.
    pub fn joint_names(&self) -> impl Iterator<Item = &str> {
        self.blocks.iter().filter_map(|block| match &block.want {
            Want::Whole(whole) if whole.is_joint => Some(whole.name.as_ref()?.0.as_str()),
            _ => None,
        })
    }

    /// Drops each `serve` that every table inside overrides: it holds for no device.
    pub(super) fn forget_overridden_serves(&mut self) {
        let mut serves = std::mem::take(&mut self.serves);
        serves.retain(|(serve, _)| {
            let mut settings = self.daemon_settings();
            settings.any(|settings| settings.serve.as_ref() == Some(serve))
        });
        self.serves = serves;
    }

    /// Returns the memory limits of all devices, each once.
    pub fn memory_limits(&self) -> BTreeSet<MemoryLimit> {
        self.daemon_settings()
            .filter_map(|settings| settings.pinned_memory_limit)
            .collect()
    }

    /// Returns the number of the line on which a block begins.
    pub fn line_of_block(&self, block: usize) -> usize {
        self.source.line_number(self.blocks[block].span)
    }

    /// Names a block by its place and selector: `line 12: { all = true }`.
    pub fn block_heading(&self, block: usize) -> String {
        let select = self.source.text_at(self.blocks[block].span);
        let first_line = select.lines().next().unwrap_or_default();
        format!("line {}: {first_line}", self.line_of_block(block))
    }

    /// Returns an error at a place in this profile.
    pub fn error_at(&self, span: Span, message: impl Into<String>) -> ProfileError {
        self.source.error_at(span, message)
    }

    /// Returns a problem with a place in this profile as an error.
    pub fn problem_at(&self, span: Span, problem: Problem) -> ProfileError {
        let error = self.error_at(span, problem.what);
        match problem.hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }
}

/// `KEY=VALUE`: a setting of a running daemon, on the command line.
#[derive(Clone, Debug)]
pub struct SettingAssignment {
    key: &'static SettingKey,
    /// The name by which the command line calls the setting.
    name: String,
    value: String,
}

impl SettingAssignment {
    /// Returns the keys that can be changed while a daemon runs.
    pub fn live_keys() -> Vec<&'static str> {
        KEYS.iter()
            .filter(|key| key.is_live())
            .map(|key| key.name)
            .collect()
    }

    /// Puts the values into settings; a share first, since the others take the place of what it decides.
    pub fn apply_all(assignments: &[Self], settings: &mut Settings) {
        let (shares, others): (Vec<&Self>, Vec<&Self>) =
            assignments.iter().partition(|one| one.sets_key(SHARE));
        for one in shares.into_iter().chain(others) {
            let checked = (one.key.parse)(settings, &one.value);
            debug_assert_eq!(checked, Ok(()));
        }
    }

    /// Refuses two names of one setting.
    pub fn check_names(assignments: &[Self]) -> Result<(), Problem> {
        for (position, one) in assignments.iter().enumerate() {
            let same = assignments[..position]
                .iter()
                .find(|earlier| earlier.key.name == one.key.name);
            if let Some(other) = same.filter(|other| other.name != one.name) {
                return Err(two_names_problem(&other.name, &one.name));
            }
        }
        Ok(())
    }

    /// True if it gives a value to the setting with that name.
    pub fn sets_key(&self, key: &str) -> bool {
        self.key.name == key
    }
}

/// The mistake of giving a setting by its name and by its short name.
pub(super) fn two_names_problem(first: &str, second: &str) -> Problem {
    let what = format!("{first} and {second} are two names of one setting");
    Problem::new(what, "omit one of them")
}

impl FromStr for SettingAssignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| "a setting has the form KEY=VALUE".to_owned())?;
        let Some(key) = find_setting(name) else {
            let live = Self::live_keys();
            let near = setting_for_word(name).or_else(|| closest_match(name, live.iter().copied()));
            return Err(match near {
                Some(near) => format!("there is no setting {name}: did you mean {near}?"),
                None => format!(
                    "there is no setting {name}: the settings are {}",
                    live.join(", ")
                ),
            });
        };
        if !key.is_live() {
            return Err(format!(
                "{} cannot be changed while the daemon runs; change the profile and run up, which starts the daemon \
                 again",
                key.name
            ));
        }
        let own = key.in_own_words(value);
        (key.parse)(&mut Settings::default(), &own)
            .map_err(|wrong| wrong.describe_for(name, value))?;
        let name = name.to_owned();
        Ok(Self {
            key,
            name,
            value: own,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::ClientPriority;

    #[test]
    fn what_cannot_be_set_says_why() {
        for (text, why) in [
            (
                "active-thread-percentage",
                "a setting has the form KEY=VALUE",
            ),
            ("=25", "a setting has the form KEY=VALUE"),
            (
                "active-thread-percentage=0",
                "active-thread-percentage must be from 0.1 to 100",
            ),
            (
                "active-thread-percentage=NaN",
                "active-thread-percentage must be from 0.1 to 100",
            ),
            (
                "pinned-memory-limit=2GB",
                "pinned-memory-limit = \"2GB\": its unit is M (MiB) or G (GiB), as in 2G",
            ),
            (
                "client-priority=7",
                "client-priority = \"7\" is not one of \"normal\", \"below-normal\"",
            ),
            ("max-clients=0", "max-clients must be from 1 to 1024"),
            ("share=0", "share must be from 1 to 1024"),
            ("oversubscribe=0.5", "oversubscribe must be from 1 to 1024"),
            (
                "memory=4GB",
                "memory = \"4GB\": its unit is M (MiB) or G (GiB), as in 4G",
            ),
            ("mem=4G", "there is no setting mem: did you mean memory?"),
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
        let mut set = |texts: &[&str]| {
            let parsed = texts.iter().map(|text| text.parse().unwrap());
            let assignments: Vec<SettingAssignment> = parsed.collect();
            SettingAssignment::apply_all(&assignments, &mut settings);
            settings.clone()
        };
        let set_to = set(&[
            "active-thread-percentage=33.3",
            "memory=1.5G",
            "client-priority=below-normal",
            "max-clients=8",
        ]);
        let wanted = Settings {
            active_thread_percentage: "33.3".parse().unwrap(),
            pinned_memory_limit: "1536M".parse().ok(),
            client_priority: ClientPriority::BelowNormal,
            max_clients: Some(8),
            ..Settings::default()
        };
        assert_eq!(set_to, wanted);
        assert_eq!(set(&["pinned-memory-limit=none"]).pinned_memory_limit, None);
        // Whatever the order, the others take the place of what a share decides.
        let shared = set(&["max-clients=6", "share=4"]);
        assert_eq!(shared.max_clients, Some(6));
        assert!(shared.share.unwrap().decides("active-thread-percentage"));
        assert!(!shared.share.unwrap().decides("max-clients"));
    }
}
