use std::fmt;

use super::ClientOf;
use crate::node::Served;
use crate::profile::Assignment;
use crate::settings::{LimitAnswer, Settings};

const KEYS: [&str; 4] = Assignment::KEYS;

/// Settings that change while a daemon runs. This disrupts nobody: programs that start afterwards get the new ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    /// Its device's name.
    pub name: String,
    /// The UUID its directory is called by.
    pub uuid: String,
    /// All settings of the daemon afterwards.
    pub settings: Settings,
    /// The settings that change.
    pub changes: Vec<Change>,
    /// The keys whose values come from `mig-mps set` and not from a profile.
    pub by_hand: Vec<String>,
    /// Its clients, which keep their old settings.
    pub keep: Vec<ClientOf>,
}

/// A setting with its present and its wanted value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its key in a profile.
    pub key: &'static str,
    /// The present value.
    pub is: String,
    /// The wanted value.
    pub wanted: String,
}

impl Change {
    fn of(key: &'static str, is: String, wanted: String) -> Self {
        Self { key, is, wanted }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, not {}", self.key, self.is, self.wanted)
    }
}

/// Joins changes into one reason.
pub(super) fn in_words(changes: &[Change]) -> String {
    let changes: Vec<String> = changes.iter().map(Change::to_string).collect();
    changes.join("; ")
}

/// The clients that keep their old settings; none for `max-clients`, which MPS does not know.
pub(super) fn keep(changes: &[Change], served: &Served) -> Vec<ClientOf> {
    if changes.iter().all(|change| change.key == KEYS[3]) {
        return Vec::new();
    }
    ClientOf::all(served)
}

/// The settings of a daemon that differ from what they should be and can be changed while it runs: those recorded, or
/// those that the daemon itself reports.
pub(super) fn changes(served: &Served, wanted: &Settings) -> Vec<Change> {
    let changes = [
        percentage(served, wanted),
        memory_limit(served, wanted),
        priority(served, wanted),
        max_clients(served, wanted),
    ];
    let by_hand = &served.record.by_hand;
    changes
        .into_iter()
        .flatten()
        .map(|mut change| {
            if by_hand.iter().any(|key| key == change.key) {
                change.is.push_str(" (set by hand)");
            }
            change
        })
        .collect()
}

fn percentage(served: &Served, wanted: &Settings) -> Option<Change> {
    let has = served.record.settings.active_thread_percentage;
    let wanted = wanted.active_thread_percentage;
    let is = if has == wanted {
        let answered = served.answered.as_ref()?.percentage;
        in_the_daemon(Some(answered).filter(|&answered| wanted.differs_from(answered))?)
    } else {
        has.to_string()
    };
    Some(Change::of(KEYS[0], is, wanted.to_string()))
}

fn memory_limit(served: &Served, wanted: &Settings) -> Option<Change> {
    let has = served.record.settings.pinned_memory_limit;
    let wanted = wanted.pinned_memory_limit;
    let is = if has == wanted {
        let answered = served.answered.as_ref()?.pinned_memory_limit;
        if !LimitAnswer::differs(answered, wanted) {
            return None;
        }
        in_the_daemon(or_none(answered))
    } else {
        or_none(has)
    };
    Some(Change::of(KEYS[1], is, or_none(wanted)))
}

fn priority(served: &Served, wanted: &Settings) -> Option<Change> {
    let has = served.record.settings.client_priority;
    let wanted = wanted.client_priority;
    let is = if has == wanted {
        let answered = served.answered.as_ref()?.client_priority;
        in_the_daemon(answered.filter(|&answered| answered != wanted)?)
    } else {
        has.to_string()
    };
    Some(Change::of(KEYS[2], is, wanted.to_string()))
}

fn max_clients(served: &Served, wanted: &Settings) -> Option<Change> {
    let (has, wanted) = (served.record.settings.max_clients, wanted.max_clients);
    (has != wanted).then(|| Change::of(KEYS[3], or_none(has), or_none(wanted)))
}

/// Returns a setting that differs from the wanted one and needs a restart, in words.
pub(super) fn needs_restart(served: &Served, wanted: &Settings) -> Option<String> {
    let has = &served.record.settings;
    let differ = |key: &str, is: String, wanted: String| {
        (is != wanted).then(|| format!("{key} is {is}, not {wanted}"))
    };
    let cpus = |settings: &Settings| {
        let cpus = settings.cpus.as_ref();
        cpus.map_or_else(|| "all".to_owned(), ToString::to_string)
    };
    let nofile = |settings: &Settings| {
        let nofile = settings.nofile;
        nofile.map_or_else(|| "the default".to_owned(), |files| files.to_string())
    };
    let mode = |settings: &Settings| {
        let mode = settings.compute_mode;
        mode.map_or_else(|| "as it was".to_owned(), |mode| mode.to_string())
    };
    differ("cpus", cpus(has), cpus(wanted))
        .or_else(|| differ("nofile", nofile(has), nofile(wanted)))
        .or_else(|| differ("compute-mode", mode(has), mode(wanted)))
}

/// Marks a value that somebody else has set in the daemon.
fn in_the_daemon(value: impl fmt::Display) -> String {
    format!("{value} in the daemon")
}

fn or_none(value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}
