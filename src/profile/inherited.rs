//! Reads `mps`: the settings of a table, and those that it inherits from the tables around it.

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::block::two_names_problem;
use super::diagnostic::Span;
use super::read::{Noted, ProfileCheck};
use super::schema::{KeyValue, Mps, Written};
use super::value_hint::{suggest_rewrite, suggest_word};
use crate::settings::{
    COMPUTE_MODE, KEYS, OVERSUBSCRIBE, SERVE, SHARE, SettingForm, SettingKey, Settings,
    find_setting, setting_for_word, setting_named,
};

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
    pub(super) fn for_whole_gpu(&self) -> Option<Settings> {
        self.off.is_none().then(|| self.settings.clone())
    }

    /// The settings of a MIG device's daemon; `None` for no daemon.
    pub(super) fn for_mig_device(
        &self,
        check: &ProfileCheck<'_>,
    ) -> Result<Option<Settings>, Noted> {
        match (self.for_whole_gpu(), self.compute_mode) {
            (Some(_), Some(span)) => {
                let message = "compute-mode is for whole GPUs: in MIG mode the driver refuses exclusive-process";
                let hint = "move it to the mps of a [[gpu]] block with mig = false";
                Err(check.note(check.error_at(span, message).with_hint(hint)))
            }
            (settings, _) => Ok(settings),
        }
    }
}

impl<'a> ProfileCheck<'a> {
    /// Returns the settings of a table within others, by its key `mps`.
    pub(super) fn inherit_settings(&self, around: &Inherited, mps: KeyValue<Mps<'a>>) -> Inherited {
        let mut inherited = around.clone();
        match mps {
            Ok(None) => return inherited,
            Ok(Some((Mps::Off, span))) => inherited.off = Some(span),
            Ok(Some((Mps::Settings(table), _))) => {
                inherited.off = None;
                self.note_two_names(table);
                // The others in its table take the place of what a share decides.
                let (share, others): (Vec<_>, Vec<_>) =
                    table.iter().partition(|(name, _)| SHARE == name.get_ref());
                for &(name, value) in share.iter().chain(&others) {
                    // A wrong one is noted, and the others are checked.
                    let _ = self.apply_setting(&mut inherited, name, value);
                }
                if share.is_empty() && inherited.settings.share.is_none() {
                    self.note_oversubscription(table);
                }
            }
            Err(Noted) => inherited.off = None,
        }
        inherited
    }

    /// Refuses a factor for devices without a share.
    fn note_oversubscription(&self, table: &DeTable<'_>) {
        if let Some(value) = table.get(OVERSUBSCRIBE) {
            let error = self.error_at(
                value.span(),
                "oversubscribe is for a device that has a share",
            );
            let hint = "add share = N, the number of clients";
            self.note(error.with_hint(hint));
        }
    }

    /// Refuses a table that gives a setting by its name and by its short name.
    fn note_two_names(&self, table: &DeTable<'_>) {
        for key in KEYS {
            let mut given: Vec<&Spanned<DeString<'_>>> = key
                .accepted_names()
                .filter_map(|name| table.get_key_value(name))
                .map(|(name, _)| name)
                .collect();
            given.sort_by_key(|name| name.span().start);
            if let [first, second] = given[..] {
                let problem = two_names_problem(first.get_ref(), second.get_ref());
                let error = self.error_at(second.span(), problem.what);
                self.note(match problem.hint {
                    Some(hint) => error.with_hint(hint),
                    None => error,
                });
            }
        }
    }

    fn apply_setting(
        &self,
        inherited: &mut Inherited,
        name: &Spanned<DeString<'_>>,
        value: Written<'_>,
    ) -> Result<(), Noted> {
        let key = self.find_key(name)?;
        self.set_value(key, name.get_ref(), value, &mut inherited.settings)?;
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

    fn find_key(&self, name: &Spanned<DeString<'_>>) -> Result<&'static SettingKey, Noted> {
        let name_span = name.span();
        let name = name.get_ref();
        setting_named(name).ok_or_else(|| {
            let known: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
            let error = self.source.unknown_key(name_span, name, &known);
            let called = find_setting(name).map(|key| key.name);
            self.note(match called.or_else(|| setting_for_word(name)) {
                Some(SERVE) => {
                    error.with_hint("write serve = \"user:NAME\" or serve = \"group:NAME\"")
                }
                Some(key) => error.with_hint(format!("write {key} instead of {name}")),
                None => error,
            })
        })
    }

    fn set_value(
        &self,
        key: &SettingKey,
        name: &str,
        value: Written<'_>,
        settings: &mut Settings,
    ) -> Result<(), Noted> {
        let text = check_form(key, value.get_ref()).map_err(|form| {
            let error = self.error_at(value.span(), format!("{name} must be {form}"));
            self.note(match suggest_rewrite(key, value.get_ref()) {
                Some(value) => error.with_hint(format!("write {name} = {value}")),
                None => error,
            })
        })?;
        (key.parse)(settings, &text).map_err(|wrong| {
            let error = self.error_at(value.span(), wrong.describe_for(name, &text));
            self.note(match suggest_word(&wrong, &text) {
                Some(hint) => error.with_hint(hint),
                None => error,
            })
        })
    }
}

/// Returns the text of a value that has the form of its key, or else that form in words.
fn check_form(key: &SettingKey, value: &DeValue<'_>) -> Result<String, &'static str> {
    match (key.form, value) {
        (SettingForm::Text, DeValue::String(text)) => Ok(text.clone().into_owned()),
        (SettingForm::Number | SettingForm::WholeNumber, DeValue::Integer(number)) => {
            let number = i64::from_str_radix(number.as_str(), number.radix());
            // One that is too large is out of any range.
            Ok(number.unwrap_or(i64::MAX).to_string())
        }
        (SettingForm::Number, DeValue::Float(number)) => Ok(number.as_str().to_owned()),
        (SettingForm::Text, _) => Err("a string"),
        (SettingForm::Number, _) => Err("a number"),
        (SettingForm::WholeNumber, _) => Err("a whole number"),
    }
}
