use super::served::Served;
use crate::settings::LimitAnswer;

/// Describes the settings of a daemon that somebody changed.
pub(super) fn drift(served: &Served) -> Option<String> {
    if !served.record.finished {
        // A change is setting them.
        return None;
    }
    let set = &served.record.settings;
    let answered = served.answered.as_ref()?;
    let mut changed = Vec::new();
    let mut compare = |key: &str, differs: bool, set: String, is: String| {
        if differs {
            changed.push(format!("{key} was set to {set} and is {is}"));
        }
    };
    let (wanted, is) = (set.active_thread_percentage, answered.percentage);
    compare(
        "active-thread-percentage",
        wanted.differs_from(is),
        wanted.to_string(),
        is.to_string(),
    );
    let none = || "none".to_owned();
    let (wanted, is) = (set.pinned_memory_limit, answered.pinned_memory_limit);
    compare(
        "pinned-memory-limit",
        LimitAnswer::differs(is, wanted),
        wanted.map_or_else(none, |limit| limit.to_string()),
        is.map_or_else(none, |limit| limit.to_string()),
    );
    let wanted = set.client_priority;
    let is = answered.client_priority.unwrap_or(wanted);
    compare(
        "client-priority",
        wanted != is,
        wanted.to_string(),
        is.to_string(),
    );
    (!changed.is_empty()).then(|| format!("{}: somebody has changed it", changed.join("; ")))
}
