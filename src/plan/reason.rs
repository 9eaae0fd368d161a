//! The reasons for the actions of a plan.

use std::borrow::Cow;
use std::fmt;

use serde::{Serialize, Serializer};

use crate::settings::Settings;

/// The beginnings of reasons for one daemon or instance, and the same for several.
const PLURAL_REASONS: [(&str, &str); 13] = [
    ("mig-mps made it", "mig-mps made them"),
    ("its instance is", "their instances are"),
    ("its device is", "their devices are"),
    (
        "its daemon is gone already",
        "their daemons are gone already",
    ),
    ("its daemon has died", "their daemons have died"),
    ("its daemon does not answer", "their daemons do not answer"),
    ("its daemon is stopped by", "their daemons are stopped by"),
    ("its daemon runs as", "their daemons run as"),
    ("its pipe directory was", "their pipe directories were"),
    ("its record is missing or", "their records are missing or"),
    ("it keeps its GPU memory", "they keep their GPU memory"),
    ("it hangs:", "they hang:"),
    ("it has ended", "they have ended"),
];

/// The reason of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// True if the command itself asks for it; the text is then what else there is to say.
    is_asked_for: bool,
    text: String,
}

impl Reason {
    /// The command itself asks for it.
    pub(super) const ASKED_FOR: Self = Self {
        is_asked_for: true,
        text: String::new(),
    };

    /// The same with a remark.
    #[must_use]
    pub(super) fn with_remark(mut self, remark: &str) -> Self {
        if !self.text.is_empty() {
            self.text.push_str("; ");
        }
        self.text.push_str(remark);
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

    /// Returns what a plan has to say of it for so many daemons or instances: nothing of what the command asks for.
    pub fn text_in_plan(&self, number: usize) -> Cow<'_, str> {
        let text = self.text.as_str();
        if number <= 1 {
            return Cow::Borrowed(text);
        }
        PLURAL_REASONS
            .iter()
            .find_map(|(one, several)| Some(format!("{several}{}", text.strip_prefix(one)?)))
            .map_or(Cow::Borrowed(text), Cow::Owned)
    }
}

impl<T: Into<String>> From<T> for Reason {
    fn from(what: T) -> Self {
        Self {
            is_asked_for: false,
            text: what.into(),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.is_asked_for, self.text.as_str()) {
            (false, text) => f.write_str(text),
            (true, "") => f.write_str("asked for"),
            (true, text) => write!(f, "asked for; {text}"),
        }
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
