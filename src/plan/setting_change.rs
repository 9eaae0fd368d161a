//! Settings of a running daemon compared with the wanted ones.

use super::action::{Action, Set, SettingChange, Step};
use super::refusal::ClientOf;
use crate::node::Served;
use crate::settings::{KEYS, SettingKey, Settings, Update};

impl SettingChange {
    fn of(key: &SettingKey, is: &Settings, wanted: &Settings) -> Self {
        Self {
            key: key.name,
            is: (key.show)(is),
            wanted: (key.show)(wanted),
        }
    }
}

impl Set {
    /// The step that makes these changes to a running daemon.
    pub(super) fn step(
        served: &Served,
        settings: Settings,
        changes: Vec<SettingChange>,
        by_hand: Vec<String>,
    ) -> Step {
        let change = |change: &SettingChange| {
            let (key, is, wanted) = (change.key, &change.is, &change.wanted);
            format!("{key} from {is} to {wanted}")
        };
        let because: Vec<String> = changes.iter().map(change).collect();
        let set = Self {
            name: served.record.name.clone(),
            uuid: served.record.uuid.clone(),
            settings,
            keep: keep(&changes, served),
            changes,
            by_hand,
        };
        Action::Set(set).because(because.join("; "))
    }
}

/// The clients that keep their old settings; none for settings that MPS does not know.
fn keep(changes: &[SettingChange], served: &Served) -> Vec<ClientOf> {
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
    let record = &served.record;
    let mut change = SettingChange::of(key, &record.settings, wanted);
    if change.is == change.wanted {
        // Somebody else may have set another value in the daemon.
        let reported = served.answered.as_ref()?;
        change.is = format!("{} in the daemon", reported.difference(key, wanted)?);
    }
    if record.by_hand.iter().any(|by_hand| by_hand == key.name) {
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
