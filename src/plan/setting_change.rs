//! The differences between the settings of a running daemon and those that it should have.

use super::action::SettingChange;
use super::daemons::render_serve;
use crate::node::Served;
use crate::settings::{KEYS, SettingKey, Settings, Update};

impl SettingChange {
    fn for_key(key: &SettingKey, is: &Settings, wanted: &Settings) -> Self {
        Self {
            key: key.name,
            is: (key.show)(is),
            wanted: (key.show)(wanted),
        }
    }
}

/// The settings of a daemon that differ from what they should be and can be changed while it runs: those recorded, or
/// those that the daemon itself reports.
pub(super) fn live_changes(served: &Served, wanted: &Settings) -> Vec<SettingChange> {
    KEYS.iter()
        .filter(|key| key.is_live())
        .filter_map(|key| live_change(key, served, wanted))
        .chain(access_change(served))
        .collect()
}

/// The change of directories that are open to others than the users of their device, or closed to these.
fn access_change(served: &Served) -> Option<SettingChange> {
    let faults: Vec<String> = served
        .access
        .iter()
        .filter(|fault| fault.can_be_set_live())
        .map(ToString::to_string)
        .collect();
    let serve = render_serve(&served.record.settings);
    (!faults.is_empty()).then(|| SettingChange {
        key: "serve",
        is: format!("{serve} ({})", faults.join("; ")),
        wanted: serve,
    })
}

fn live_change(key: &SettingKey, served: &Served, wanted: &Settings) -> Option<SettingChange> {
    let record = &served.record;
    let mut change = SettingChange::for_key(key, &record.settings, wanted);
    if change.is == change.wanted {
        // Somebody else may have set another value in the daemon.
        let reported = served.answered.as_ref()?;
        change.is = format!("{} in the daemon", reported.differing_value(key, wanted)?);
    }
    if record.by_hand.iter().any(|by_hand| by_hand == key.name) {
        change.is.push_str(" (set by hand)");
    }
    Some(change)
}

/// Returns a setting that differs from the wanted one and needs a restart, in words.
pub(super) fn change_needing_restart(served: &Served, wanted: &Settings) -> Option<String> {
    KEYS.iter()
        .filter(|key| matches!(key.update, Update::Restart))
        .map(|key| SettingChange::for_key(key, &served.record.settings, wanted))
        .find(|change| change.is != change.wanted)
        .map(|change| change.to_string())
}
