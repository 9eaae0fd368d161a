use std::fmt;

use super::ClientOf;
use crate::node::Served;
use crate::profile::Assignment;
use crate::settings::{LimitAnswer, Settings};

const KEYS: [&str; 4] = Assignment::KEYS;

/// Settings of a daemon that are changed while it runs. Nobody is disturbed: programs that start
/// afterwards get the new ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    /// Its device's name.
    pub name: String,
    /// The UUID its directory is called by.
    pub uuid: String,
    /// What the daemon's settings are then, all of them.
    pub settings: Settings,
    /// What of them is new.
    pub changes: Vec<Change>,
    /// The keys whose values come from `mig-mps set` and not from a profile.
    pub by_hand: Vec<String>,
    /// Its clients: they keep what they started with.
    pub keep: Vec<ClientOf>,
}

/// One setting that is to be another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its key in a profile.
    pub key: &'static str,
    /// What it is, in words.
    pub is: String,
    /// What it shall be.
    pub shall: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, not {}", self.key, self.is, self.shall)
    }
}

/// Several changes, as one reason.
pub(super) fn in_words(changes: &[Change]) -> String {
    let changes: Vec<String> = changes.iter().map(Change::to_string).collect();
    changes.join("; ")
}

/// The clients that keep what they started with; MPS itself is told nothing of `max-clients`.
pub(super) fn keep(changes: &[Change], served: &Served) -> Vec<ClientOf> {
    if changes.iter().all(|change| change.key == KEYS[3]) {
        return Vec::new();
    }
    ClientOf::all(served)
}

/// What of a daemon's settings is not as it shall be and can be changed while it runs; be it by what is recorded, or by
/// what the daemon itself says.
pub(super) fn changes(served: &Served, shall: &Settings) -> Vec<Change> {
    let record = &served.record;
    let has = &record.settings;
    let answered = served.answered.as_ref();
    let said = |value: String, key: &str| {
        if record.by_hand.iter().any(|other| other == key) {
            format!("{value} (set by hand)")
        } else {
            value
        }
    };
    let mut changes = Vec::new();
    let mut add = |key: &'static str, is: String, shall: String| {
        let is = said(is, key);
        changes.push(Change { key, is, shall });
    };
    let percentage = shall.active_thread_percentage;
    if has.active_thread_percentage != percentage {
        add(
            KEYS[0],
            has.active_thread_percentage.to_string(),
            percentage.to_string(),
        );
    } else if let Some(answered) = answered.map(|answered| answered.percentage)
        && percentage.differs_from(answered)
    {
        add(KEYS[0], in_the_daemon(answered), percentage.to_string());
    }
    if has.pinned_memory_limit != shall.pinned_memory_limit {
        add(
            KEYS[1],
            or_none(has.pinned_memory_limit),
            or_none(shall.pinned_memory_limit),
        );
    } else if let Some(answered) = answered.map(|answered| answered.pinned_memory_limit)
        && LimitAnswer::differs(answered, shall.pinned_memory_limit)
    {
        let is = in_the_daemon(or_none(answered));
        add(KEYS[1], is, or_none(shall.pinned_memory_limit));
    }
    if has.client_priority != shall.client_priority {
        add(
            KEYS[2],
            has.client_priority.to_string(),
            shall.client_priority.to_string(),
        );
    } else if let Some(answered) = answered.and_then(|answered| answered.client_priority)
        && answered != shall.client_priority
    {
        let is = in_the_daemon(answered);
        add(KEYS[2], is, shall.client_priority.to_string());
    }
    if has.max_clients != shall.max_clients {
        add(
            KEYS[3],
            or_none(has.max_clients),
            or_none(shall.max_clients),
        );
    }
    changes
}

/// What of a daemon's settings is not as it shall be and takes another daemon.
pub(super) fn needs_restart(served: &Served, shall: &Settings) -> Option<String> {
    let has = &served.record.settings;
    let differ = |key: &str, is: String, shall: String| {
        (is != shall).then(|| format!("{key} is {is}, not {shall}"))
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
    differ("cpus", cpus(has), cpus(shall))
        .or_else(|| differ("nofile", nofile(has), nofile(shall)))
        .or_else(|| differ("compute-mode", mode(has), mode(shall)))
}

/// What somebody else has told the daemon.
fn in_the_daemon(value: impl fmt::Display) -> String {
    format!("{value} in the daemon")
}

fn or_none(value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}
