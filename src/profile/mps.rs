//! The `[mps]` tables: settings of daemons, each inherited from the table around it.

use toml::{Spanned, Value};

use super::check::Check;
use super::diagnostic::{ProfileError, Span, nearest};
use super::schema::MpsTable;
use crate::settings::{COMPUTE_MODE, Form, KEYS, SERVE, SettingKey, Settings, WrongValue};

/// Settings that a table inherits from those around it.
#[derive(Clone, Default)]
pub(super) struct Inherited {
    pub(super) settings: Settings,
    /// The place of `compute-mode`: a MIG device has none.
    compute_mode: Option<Span>,
}

impl Inherited {
    /// The settings of a MIG device.
    pub(super) fn in_mig(self, check: &Check<'_>) -> Result<Settings, ProfileError> {
        match self.compute_mode {
            Some(span) => {
                let message = "compute-mode is for whole GPUs: in MIG mode the driver refuses exclusive-process";
                let hint = "write it into the mps of a [[gpu]] block with mig = false";
                Err(check.error(span, message).with_hint(hint))
            }
            None => Ok(self.settings),
        }
    }
}

impl Check<'_> {
    /// Returns the settings of a table within others.
    pub(super) fn settings(&self, around: &Inherited, mps: Option<&MpsTable>) -> Inherited {
        let mut inherited = around.clone();
        for (name, value) in mps.into_iter().flatten() {
            let set = |key| self.set(key, value, &mut inherited.settings).map(|()| key);
            let Some(key) = self.keep(self.key(name).and_then(set)) else {
                continue;
            };
            let span = value.span().into();
            if key.name == COMPUTE_MODE {
                inherited.compute_mode = Some(span);
            }
            if key.name == SERVE {
                let serve = inherited.settings.serve.clone();
                let mut serves = self.serves.borrow_mut();
                serves.extend(serve.map(|serve| (serve, span)));
            }
        }
        inherited
    }

    fn key(&self, name: &Spanned<String>) -> Result<&'static SettingKey, ProfileError> {
        let found = KEYS.iter().find(|key| key.name == name.get_ref());
        found.ok_or_else(|| {
            let known: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
            self.source.unknown_key(name.span(), name.get_ref(), &known)
        })
    }

    fn set(
        &self,
        key: &SettingKey,
        value: &Spanned<Value>,
        settings: &mut Settings,
    ) -> Result<(), ProfileError> {
        let text = text(key, value.get_ref()).map_err(|wrong| self.error(value.span(), wrong))?;
        (key.parse)(settings, &text).map_err(|wrong| {
            let error = self.error(value.span(), wrong.of(key.name, &text));
            match nearest_word(&wrong, &text) {
                Some(near) => error.with_hint(format!("did you mean \"{near}\"?")),
                None => error,
            }
        })
    }
}

/// Returns the text of a value that has the form of its key.
fn text(key: &SettingKey, value: &Value) -> Result<String, String> {
    let form = match (key.form, value) {
        (Form::Text, Value::String(text)) => return Ok(text.clone()),
        (Form::Number | Form::WholeNumber, Value::Integer(number)) => return Ok(number.to_string()),
        (Form::Number, Value::Float(number)) => return Ok(number.to_string()),
        (Form::Text, _) => "a string",
        (Form::Number, _) => "a number",
        (Form::WholeNumber, _) => "a whole number",
    };
    Err(format!("{} must be {form}", key.name))
}

/// Returns the word that was probably meant. A name after a colon stays.
fn nearest_word(wrong: &WrongValue, text: &str) -> Option<String> {
    let WrongValue::Word(words) = wrong else {
        return None;
    };
    let name = text.split_once(':').map(|(_, name)| name);
    let named = |word: &&str| match (word.split_once(':'), name) {
        (Some((kind, _)), Some(name)) if !name.is_empty() => format!("{kind}:{name}"),
        _ => (*word).to_owned(),
    };
    let words: Vec<String> = words.iter().map(named).collect();
    nearest(text, words.iter().map(String::as_str)).map(str::to_owned)
}
