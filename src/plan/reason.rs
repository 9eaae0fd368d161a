//! The reasons for the actions of a plan.

use std::fmt;

use serde::{Serialize, Serializer};

use super::action::SettingChange;
use crate::settings::Settings;

/// The beginnings of reasons for one daemon or instance, and the same for several.
const PLURAL_REASONS: [(&str, &str); 16] = [
    ("mig-mps created it", "mig-mps created them"),
    ("its instance is", "their instances are"),
    ("its device is", "their devices are"),
    (
        "its daemon has already exited",
        "their daemons have already exited",
    ),
    ("its daemon has died", "their daemons have died"),
    ("its daemon does not answer", "their daemons do not answer"),
    ("its daemon is stopped by", "their daemons are stopped by"),
    ("its daemon runs as", "their daemons run as"),
    ("its pipe directory was", "their pipe directories were"),
    ("its record is missing or", "their records are missing or"),
    ("it keeps its GPU memory", "they keep their GPU memory"),
    ("it is hung:", "they are hung:"),
    ("it has exited", "they have exited"),
    ("it was stopped", "they were stopped"),
    ("its GPU instance is", "their GPU instances are"),
    ("its GPUs change", "their GPUs change"),
];

/// The reason of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    cause: MainReason,
    /// What else there is to say.
    remarks: Vec<String>,
}

/// The main part of a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
enum MainReason {
    /// The command itself asks for it.
    AskedFor,
    Other(String),
    /// The device gets another name.
    Rename {
        from: String,
        to: String,
    },
    /// Settings change, and the step has them.
    Settings(String),
}

impl Reason {
    /// The command itself asks for it.
    pub(super) const ASKED_FOR: Self = Self {
        cause: MainReason::AskedFor,
        remarks: Vec::new(),
    };

    /// The device gets another name.
    pub(super) fn rename(from: &str, to: &str) -> Self {
        Self::from_cause(MainReason::Rename {
            from: from.to_owned(),
            to: to.to_owned(),
        })
    }

    /// The settings of a running daemon change.
    pub(super) fn settings(changes: &[SettingChange]) -> Self {
        let words: Vec<String> = changes
            .iter()
            .map(|change| format!("{} from {} to {}", change.key, change.is, change.wanted))
            .collect();
        Self::from_cause(MainReason::Settings(words.join("; ")))
    }

    fn from_cause(cause: MainReason) -> Self {
        Self {
            cause,
            remarks: Vec::new(),
        }
    }

    /// The same with a remark.
    #[must_use]
    pub(super) fn with_remark(mut self, remark: &str) -> Self {
        self.remarks.push(remark.to_owned());
        self
    }

    /// The same with what each client gets, if these settings have a share.
    #[must_use]
    pub(super) fn with_share(self, settings: &Settings) -> Self {
        match settings.share_in_words() {
            Some(words) => self.with_remark(&words),
            None => self,
        }
    }

    /// True if both say the same, apart from the names of devices.
    pub fn is_like(&self, other: &Self) -> bool {
        let are_renames = self.as_rename().is_some() && other.as_rename().is_some();
        self.remarks == other.remarks && (are_renames || self.cause == other.cause)
    }

    /// Returns the old and the new name if the device is renamed.
    pub fn as_rename(&self) -> Option<(&str, &str)> {
        match &self.cause {
            MainReason::Rename { from, to } => Some((from, to)),
            _ => None,
        }
    }

    /// Returns what a plan has to say of it for so many daemons or instances: nothing of what the command asks for, and
    /// neither names nor settings, which the plan shows beside it.
    pub fn text_in_plan(&self, number: usize) -> String {
        let cause = match &self.cause {
            MainReason::AskedFor | MainReason::Settings(_) => String::new(),
            MainReason::Rename { .. } => "renamed".to_owned(),
            MainReason::Other(text) if number <= 1 => text.clone(),
            MainReason::Other(text) => PLURAL_REASONS
                .iter()
                .find_map(|(one, several)| Some(format!("{several}{}", text.strip_prefix(one)?)))
                .unwrap_or_else(|| text.clone()),
        };
        self.with_remarks(cause)
    }

    fn with_remarks(&self, cause: String) -> String {
        let parts = std::iter::once(cause).chain(self.remarks.iter().cloned());
        let parts: Vec<String> = parts.filter(|part| !part.is_empty()).collect();
        parts.join("; ")
    }
}

impl<T: Into<String>> From<T> for Reason {
    fn from(what: T) -> Self {
        Self::from_cause(MainReason::Other(what.into()))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = match &self.cause {
            MainReason::AskedFor => "asked for".to_owned(),
            MainReason::Other(text) | MainReason::Settings(text) => text.clone(),
            MainReason::Rename { from, to } => format!("it is renamed from {from} to {to}"),
        };
        f.write_str(&self.with_remarks(cause))
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
