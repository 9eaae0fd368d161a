use super::served::Served;
use crate::settings::KEYS;

/// Describes the settings of a daemon that somebody changed.
pub(super) fn drift(served: &Served) -> Option<String> {
    if !served.record.finished {
        // A change is setting them.
        return None;
    }
    let set = &served.record.settings;
    let reported = served.answered.as_ref()?;
    let changed: Vec<String> = KEYS
        .iter()
        .filter_map(|key| {
            let is = reported.difference(key, set)?;
            let (name, set) = (key.name, (key.show)(set));
            Some(format!("{name} was set to {set} and is {is}"))
        })
        .collect();
    (!changed.is_empty()).then(|| format!("{}: somebody has changed it", changed.join("; ")))
}
