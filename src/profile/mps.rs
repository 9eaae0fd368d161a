//! The `mps` keys: settings of daemons, each inherited from the table around it.

use toml::Spanned;
use toml::de::{DeString, DeValue};

use super::diagnostic::{ProfileError, Span};
use super::read::{Check, Noted};
use super::table::{Table, Written};
use crate::host::nearest;
use crate::settings::{COMPUTE_MODE, Form, KEYS, SERVE, SettingKey, Settings, WrongValue};

/// Settings that a table inherits from those around it.
#[derive(Clone, Default)]
pub(super) struct Inherited {
    settings: Settings,
    /// The place of `mps = false`, if no table inside it says otherwise.
    off: Option<Span>,
    /// The place of `compute-mode`: a MIG device has none.
    compute_mode: Option<Span>,
}

impl Inherited {
    /// The settings of a whole GPU's daemon; `None` for no daemon.
    pub(super) fn of_whole_gpu(&self) -> Option<Settings> {
        self.off.is_none().then(|| self.settings.clone())
    }

    /// The settings of a MIG device's daemon; `None` for no daemon.
    pub(super) fn in_mig(&self, check: &Check<'_>) -> Result<Option<Settings>, Noted> {
        match (self.of_whole_gpu(), self.compute_mode) {
            (Some(_), Some(span)) => {
                let message = "compute-mode is for whole GPUs: in MIG mode the driver refuses exclusive-process";
                let hint = "write it into the mps of a [[gpu]] block with mig = false";
                Err(check.note(check.error(span, message).with_hint(hint)))
            }
            (settings, _) => Ok(settings),
        }
    }
}

impl<'a> Check<'a> {
    /// Returns the settings of a table within others.
    pub(super) fn settings(&self, around: &Inherited, table: &Table<'a>) -> Inherited {
        let mut inherited = around.clone();
        let Some(mps) = table.get("mps") else {
            return inherited;
        };
        let span = mps.span().into();
        inherited.off = None;
        match mps.get_ref() {
            DeValue::Boolean(false) => inherited.off = Some(span),
            DeValue::Table(table) => {
                for (name, value) in table {
                    // A wrong one is noted, and the others are checked.
                    let _ = self.setting(&mut inherited, name, value);
                }
            }
            _ => {
                let error = self.error(span, "mps must be a table of settings, or false");
                self.note(error);
            }
        }
        inherited
    }

    fn setting(
        &self,
        inherited: &mut Inherited,
        name: &Spanned<DeString<'_>>,
        value: Written<'_>,
    ) -> Result<(), Noted> {
        let key = self.keep(self.key(name))?;
        self.keep(self.set(key, value, &mut inherited.settings))?;
        let span = value.span().into();
        if key.name == COMPUTE_MODE {
            inherited.compute_mode = Some(span);
        }
        if key.name == SERVE {
            let serve = inherited.settings.serve.clone();
            let mut serves = self.serves.borrow_mut();
            serves.extend(serve.map(|serve| (serve, span)));
        }
        Ok(())
    }

    fn key(&self, name: &Spanned<DeString<'_>>) -> Result<&'static SettingKey, ProfileError> {
        let found = KEYS.iter().find(|key| key.name == name.get_ref());
        found.ok_or_else(|| {
            let known: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
            self.source.unknown_key(name.span(), name.get_ref(), &known)
        })
    }

    fn set(
        &self,
        key: &SettingKey,
        value: Written<'_>,
        settings: &mut Settings,
    ) -> Result<(), ProfileError> {
        let text = text(key, value.get_ref()).map_err(|form| {
            let error = self.error(value.span(), format!("{} must be {form}", key.name));
            match value.get_ref().as_str().and_then(number_in) {
                Some(number) => error.with_hint(format!("write {} = {number}", key.name)),
                None => error,
            }
        })?;
        (key.parse)(settings, &text).map_err(|wrong| {
            let error = self.error(value.span(), wrong.of(key.name, &text));
            match nearest_word(&wrong, &text) {
                Some(near) => error.with_hint(format!("did you mean \"{near}\"?")),
                None => error,
            }
        })
    }
}

/// Returns the text of a value that has the form of its key, or else that form in words.
fn text(key: &SettingKey, value: &DeValue<'_>) -> Result<String, &'static str> {
    match (key.form, value) {
        (Form::Text, DeValue::String(text)) => Ok(text.clone().into_owned()),
        (Form::Number | Form::WholeNumber, DeValue::Integer(number)) => {
            let number = i64::from_str_radix(number.as_str(), number.radix());
            // One that is too large is out of any range.
            Ok(number.unwrap_or(i64::MAX).to_string())
        }
        (Form::Number, DeValue::Float(number)) => Ok(number.as_str().to_owned()),
        (Form::Text, _) => Err("a string"),
        (Form::Number, _) => Err("a number"),
        (Form::WholeNumber, _) => Err("a whole number"),
    }
}

/// Returns the number of a string such as `50%`.
fn number_in(text: &str) -> Option<f64> {
    let number = text.trim_end_matches('%').trim_end().parse().ok();
    number.filter(|number: &f64| number.is_finite())
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
