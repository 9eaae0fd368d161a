//! Settings of a running daemon compared with the wanted ones.

use std::fmt;

use super::ClientOf;
use crate::node::Served;
use crate::settings::{KEYS, SettingKey, Settings, Update};

/// Settings that change while a daemon runs. This disrupts nobody: programs that start afterwards get the new ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    pub name: String,
    /// The UUID its directory is called by.
    pub uuid: String,
    /// All settings of the daemon afterwards.
    pub settings: Settings,
    /// The settings that change.
    pub changes: Vec<SettingChange>,
    /// The keys whose values come from `mig-mps set` and not from a profile.
    pub by_hand: Vec<String>,
    /// Its clients, which keep their old settings.
    pub keep: Vec<ClientOf>,
}

/// A setting with its present and its wanted value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingChange {
    /// Its key in a profile.
    pub key: &'static str,
    /// The present value.
    pub is: String,
    /// The wanted value.
    pub wanted: String,
}

impl SettingChange {
    fn of(key: &SettingKey, is: &Settings, wanted: &Settings) -> Self {
        Self {
            key: key.name,
            is: (key.show)(is),
            wanted: (key.show)(wanted),
        }
    }
}

impl fmt::Display for SettingChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, not {}", self.key, self.is, self.wanted)
    }
}

/// Joins changes into one reason.
pub(super) fn in_words(changes: &[SettingChange]) -> String {
    let changes: Vec<String> = changes.iter().map(SettingChange::to_string).collect();
    changes.join("; ")
}

/// The clients that keep their old settings; none for settings that MPS does not know.
pub(super) fn keep(changes: &[SettingChange], served: &Served) -> Vec<ClientOf> {
    let reaches_clients = |key: &SettingKey| {
        let is_changed = changes.iter().any(|change| change.key == key.name);
        is_changed && key.control().is_some()
    };
    if KEYS.iter().any(reaches_clients) {
        ClientOf::all(served)
    } else {
        Vec::new()
    }
}

/// The settings of a daemon that differ from what they should be and can be changed while it runs: those recorded, or
/// those that the daemon itself reports.
pub(super) fn changes(served: &Served, wanted: &Settings) -> Vec<SettingChange> {
    let live = KEYS.iter().filter(|key| key.is_live());
    live.filter_map(|key| live_change(key, served, wanted))
        .collect()
}

fn live_change(key: &SettingKey, served: &Served, wanted: &Settings) -> Option<SettingChange> {
    let mut change = SettingChange::of(key, &served.record.settings, wanted);
    if change.is == change.wanted {
        // Somebody else may have set another value in the daemon.
        let reported = served.answered.as_ref()?;
        change.is = format!("{} in the daemon", reported.difference(key, wanted)?);
    }
    if served
        .record
        .by_hand
        .iter()
        .any(|by_hand| by_hand == key.name)
    {
        change.is.push_str(" (set by hand)");
    }
    Some(change)
}

/// Returns a setting that differs from the wanted one and needs a restart, in words.
pub(super) fn needs_restart(served: &Served, wanted: &Settings) -> Option<String> {
    KEYS.iter()
        .filter(|key| matches!(key.update, Update::Restart))
        .map(|key| SettingChange::of(key, &served.record.settings, wanted))
        .find(|change| change.is != change.wanted)
        .map(|change| change.to_string())
}
