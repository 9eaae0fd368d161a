use std::collections::VecDeque;

use super::{Settings, WrongValue};

/// A setting of a device's daemon: a row of [`KEYS`](super::KEYS).
#[derive(Debug)]
pub struct SettingKey {
    /// Its name in a profile, for `mig-mps set` and in messages.
    pub name: &'static str,
    /// The form of its value in a profile.
    pub form: Form,
    /// Puts a value into settings.
    pub parse: fn(&mut Settings, &str) -> Result<(), WrongValue>,
    /// Returns the value as text. Settings with the same text are the same.
    pub show: fn(&Settings) -> String,
    pub update: Update,
}

/// The form of a value in TOML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Text,
    Number,
    WholeNumber,
}

/// The way in which the setting of a running daemon changes.
#[derive(Debug)]
pub enum Update {
    /// The daemon restarts.
    Restart,
    /// `plan` decides: another `serve` restarts the daemon, another `server` holds from its next start on.
    Plan,
    /// The control daemon takes it, for clients that start afterwards.
    Control(Control),
    /// MPS does not know it: only the record changes.
    Record,
}

/// The control commands `set_default_WORD` and `get_default_WORD`, and `set_WORD` and `get_WORD` for a running server.
#[derive(Debug)]
pub struct Control {
    pub word: &'static str,
    /// The words before the value, such as the number of the daemon's device.
    pub arguments: &'static [&'static str],
    /// True if a running server has a value of its own.
    pub is_of_servers: bool,
    /// True if every control program has the commands. They are always sent then, and setting is answered as reading
    /// is. Others are sent only for a value that is not the default.
    pub is_universal: bool,
    /// Returns the value in the control program's form.
    pub value: fn(&Settings) -> String,
    /// Reads a line of an answer, and shows the value; `None` if the line is no answer. An empty text is the answer of
    /// a control program that says nothing where nothing is set.
    pub read: fn(&str) -> Option<String>,
    /// True if an answer cannot be that to these settings.
    pub differs: fn(&Settings, &str) -> bool,
}

impl Control {
    /// Takes an answer from the front of the lines.
    pub fn take(&self, lines: &mut VecDeque<&str>) -> Option<String> {
        let line = lines.front().map_or("", |line| line.trim());
        if (self.read)(line).is_some() {
            lines.pop_front();
            return Some(line.to_owned());
        }
        (self.read)("").map(|_| String::new())
    }
}

impl SettingKey {
    /// Returns the commands that set it, if the control daemon takes it.
    pub fn control(&self) -> Option<&Control> {
        match &self.update {
            Update::Control(control) => Some(control),
            _ => None,
        }
    }

    /// The words that it takes, if it takes nothing else; `NAME` in one stands for any name.
    pub fn words(&self) -> &'static [&'static str] {
        // An empty text is no value of any setting: the refusal lists those that are.
        match (self.parse)(&mut Settings::default(), "") {
            Err(WrongValue::Word(words)) => words,
            _ => &[],
        }
    }

    /// True if it can change while the daemon runs.
    pub fn is_live(&self) -> bool {
        matches!(self.update, Update::Control(_) | Update::Record)
    }
}
