//! The form of a profile file: a table of keys for each of its tables. They check a file, and make its JSON schema.

use serde_json::{Map, Value, json};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostic::{ProfileError, Source, Span};
use super::read::{Noted, ProfileCheck};
use crate::host::nearest;
use crate::settings::{KEYS, SettingForm, SettingKey};

/// A key of a table.
#[derive(Debug)]
pub(super) struct ProfileKey {
    pub(super) name: &'static str,
    pub(super) kind: KeyKind,
    pub(super) is_required: bool,
    /// Its meaning, for editors.
    meaning: &'static str,
}

/// The kind of a key's value.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeyKind {
    Text,
    WholeNumber,
    Flag,
    Texts,
    WholeNumbers,
    Table(&'static [ProfileKey]),
    Tables(&'static [ProfileKey]),
    /// A table of the keys of [`KEYS`], or `false`.
    Mps,
}

impl KeyKind {
    /// Describes a value of this kind.
    pub(super) fn in_words(self) -> &'static str {
        match self {
            Self::Text => "a string",
            Self::WholeNumber => "a whole number from 0 to 4294967295",
            Self::Flag => "true or false",
            Self::Texts => "a list of strings",
            Self::WholeNumbers => "a list of whole numbers",
            Self::Table(_) => "a table",
            Self::Tables(_) => "a list of tables",
            Self::Mps => "a table of settings, or false",
        }
    }
}

const fn key(name: &'static str, kind: KeyKind, meaning: &'static str) -> ProfileKey {
    ProfileKey {
        name,
        kind,
        is_required: false,
        meaning,
    }
}

const fn required(name: &'static str, kind: KeyKind, meaning: &'static str) -> ProfileKey {
    ProfileKey {
        is_required: true,
        ..key(name, kind, meaning)
    }
}

/// The keys of the file itself.
pub(super) const PROFILE: &[ProfileKey] = &[
    key(
        "name",
        KeyKind::Text,
        "Name of the profile, shown by mig-mps status",
    ),
    key(
        "models",
        KeyKind::Texts,
        "GPU models that the profile is for, as mig-mps check --models lists them",
    ),
    key(
        "mps",
        KeyKind::Mps,
        "Settings of every device's daemon, or false for devices without daemons",
    ),
    key(
        "cdi",
        KeyKind::Flag,
        "true for a file by which container engines find the devices, /var/run/cdi/mig-mps.json; false for none",
    ),
    key(
        "gpu",
        KeyKind::Tables(GPU),
        "Blocks: the first one that selects a GPU applies to it",
    ),
];

const GPU: &[ProfileKey] = &[
    required("select", KeyKind::Table(SELECT), "GPUs of this block"),
    key(
        "mig",
        KeyKind::Flag,
        "false for the whole GPU as one device, without MIG",
    ),
    key("name", KeyKind::Text, "Name of the whole GPU's device"),
    key(
        "mps",
        KeyKind::Mps,
        "Settings of this block's daemons, or false for devices without daemons",
    ),
    key(
        "devices",
        KeyKind::Tables(DEVICE),
        "MIG devices of each GPU; an empty list for MIG mode without instances",
    ),
];

const SELECT: &[ProfileKey] = &[
    key("index", KeyKind::WholeNumbers, "Indices of GPUs"),
    key(
        "product",
        KeyKind::Text,
        "Regular expression for the product name",
    ),
    key("uuid", KeyKind::Text, "UUID of a GPU, or its unique prefix"),
    key(
        "pci",
        KeyKind::Text,
        "PCI address of a GPU, such as 0000:17:00.0",
    ),
    key("all", KeyKind::Flag, "true for every GPU"),
];

const DEVICE: &[ProfileKey] = &[
    key(
        "name",
        KeyKind::Text,
        "Name of the device; {gpu} is the GPU's index, {n} counts",
    ),
    required(
        "profile",
        KeyKind::Text,
        "GPU instance profile, such as 3g, 3g.40gb or 1g+me",
    ),
    key("at", KeyKind::WholeNumber, "Start of its placement"),
    key("count", KeyKind::WholeNumber, "Number of such devices"),
    key(
        "compute",
        KeyKind::Texts,
        "Compute instances that share the GPU instance, such as 1c, 2c",
    ),
    key(
        "mps",
        KeyKind::Mps,
        "Settings of the device's daemon, or false for none",
    ),
];

/// Returns the JSON schema of a profile file.
pub fn profile_schema() -> Value {
    let mut schema = object(PROFILE);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("Profile of mig-mps");
    schema
}

fn object(keys: &[ProfileKey]) -> Value {
    let properties: Map<String, Value> = keys
        .iter()
        .map(|key| {
            let mut value = of_kind(key.kind);
            value["description"] = json!(key.meaning);
            (key.name.to_owned(), value)
        })
        .collect();
    let required: Vec<&str> = keys
        .iter()
        .filter(|key| key.is_required)
        .map(|key| key.name)
        .collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn of_kind(kind: KeyKind) -> Value {
    match kind {
        KeyKind::Text => json!({ "type": "string" }),
        KeyKind::WholeNumber => json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX }),
        KeyKind::Flag => json!({ "type": "boolean" }),
        KeyKind::Texts => json!({ "type": "array", "items": of_kind(KeyKind::Text) }),
        KeyKind::WholeNumbers => {
            json!({ "type": "array", "items": of_kind(KeyKind::WholeNumber) })
        }
        KeyKind::Table(keys) => object(keys),
        KeyKind::Tables(keys) => json!({ "type": "array", "items": object(keys) }),
        KeyKind::Mps => {
            let settings: Map<String, Value> = KEYS
                .iter()
                .map(|key| (key.name.to_owned(), setting(key)))
                .collect();
            let table = json!({
                "type": "object",
                "properties": settings,
                "additionalProperties": false,
            });
            json!({ "anyOf": [{ "const": false }, table] })
        }
    }
}

fn setting(key: &SettingKey) -> Value {
    match key.form {
        SettingForm::Number => json!({ "type": "number" }),
        SettingForm::WholeNumber => json!({ "type": "integer" }),
        SettingForm::Text if key.words().is_empty() => json!({ "type": "string" }),
        SettingForm::Text => {
            let patterns: Vec<String> = key
                .words()
                .iter()
                .map(|word| match word.split_once(':') {
                    Some((kind, _)) => format!("{kind}:.+"),
                    None => (*word).to_owned(),
                })
                .collect();
            json!({ "type": "string", "pattern": format!("^({})$", patterns.join("|")) })
        }
    }
}

/// A value of a profile as TOML has it.
pub(super) type Written<'a> = &'a Spanned<DeValue<'a>>;

/// A table with the keys that it may have. The mistakes in it are noted.
pub(super) struct ProfileTable<'a> {
    pub(super) span: Span,
    keys: &'static [ProfileKey],
    values: &'a DeTable<'a>,
}

impl<'a> ProfileCheck<'a> {
    /// Checks the keys of a table.
    pub(super) fn table(
        &self,
        span: Span,
        table: &'a DeTable<'a>,
        keys: &'static [ProfileKey],
    ) -> ProfileTable<'a> {
        let known: Vec<&str> = keys.iter().map(|key| key.name).collect();
        let mut meant = Vec::new();
        for name in table.keys() {
            let (name, span) = (name.get_ref(), name.span());
            if !known.contains(&name.as_ref()) {
                self.note(self.source.unknown_key(span, name, &known));
                meant.extend(nearest(name, known.iter().copied()));
            }
        }
        for key in keys.iter().filter(|key| key.is_required) {
            if !table.contains_key(key.name) && !meant.contains(&key.name) {
                let message = format!("the key \"{}\" is missing here", key.name);
                self.note(self.error(span, message));
            }
        }
        ProfileTable {
            span,
            keys,
            values: table,
        }
    }

    /// Returns a key's string.
    pub(super) fn text(
        &self,
        table: &ProfileTable<'a>,
        name: &'static str,
    ) -> Result<Option<(&'a str, Span)>, Noted> {
        self.value(table, name, |value| value.as_str())
    }

    pub(super) fn flag(
        &self,
        table: &ProfileTable<'a>,
        name: &'static str,
    ) -> Result<Option<(bool, Span)>, Noted> {
        self.value(table, name, DeValue::as_bool)
    }

    pub(super) fn whole_number(
        &self,
        table: &ProfileTable<'a>,
        name: &'static str,
    ) -> Result<Option<(u32, Span)>, Noted> {
        self.value(table, name, whole_number)
    }

    pub(super) fn texts(
        &self,
        table: &ProfileTable<'a>,
        name: &'static str,
    ) -> Result<Option<Vec<(&'a str, Span)>>, Noted> {
        self.values(table, name, |value| value.as_str())
    }

    pub(super) fn whole_numbers(
        &self,
        table: &ProfileTable<'a>,
        name: &'static str,
    ) -> Result<Option<Vec<(u32, Span)>>, Noted> {
        self.values(table, name, whole_number)
    }

    /// Returns the table under a key.
    pub(super) fn table_in(
        &self,
        table: &ProfileTable<'a>,
        name: &'static str,
    ) -> Result<Option<ProfileTable<'a>>, Noted> {
        let found = self.value(table, name, DeValue::as_table)?;
        let keys = table.keys_under(name);
        Ok(found.map(|(found, span)| self.table(span, found, keys)))
    }

    /// Returns the tables under a key.
    pub(super) fn tables(
        &self,
        table: &ProfileTable<'a>,
        name: &'static str,
    ) -> Result<Option<Vec<ProfileTable<'a>>>, Noted> {
        let found = self.values(table, name, DeValue::as_table)?;
        let keys = table.keys_under(name);
        Ok(found.map(|found| {
            let tables = found.into_iter();
            tables
                .map(|(found, span)| self.table(span, found, keys))
                .collect()
        }))
    }

    fn value<T>(
        &self,
        table: &ProfileTable<'a>,
        name: &'static str,
        read: impl Fn(&'a DeValue<'a>) -> Option<T>,
    ) -> Result<Option<(T, Span)>, Noted> {
        let Some(value) = table.get(name) else {
            return Ok(None);
        };
        let found = read(value.get_ref()).ok_or_else(|| {
            let error = self.wrong_kind(table, name, value);
            self.note(match hint(table.key(name), value, self.source) {
                Some(hint) => error.with_hint(hint),
                None => error,
            })
        })?;
        Ok(Some((found, value.span().into())))
    }

    /// Returns the right elements of a list; the wrong ones are noted.
    fn values<T>(
        &self,
        table: &ProfileTable<'a>,
        name: &'static str,
        read: impl Fn(&'a DeValue<'a>) -> Option<T>,
    ) -> Result<Option<Vec<(T, Span)>>, Noted> {
        let Some((list, _)) = self.value(table, name, DeValue::as_array)? else {
            return Ok(None);
        };
        let elements: Vec<(T, Span)> = list
            .iter()
            .filter_map(|element| {
                let found = read(element.get_ref());
                if found.is_none() {
                    self.note(self.wrong_kind(table, name, element));
                }
                Some((found?, element.span().into()))
            })
            .collect();
        if elements.is_empty() && !list.is_empty() {
            return Err(Noted);
        }
        Ok(Some(elements))
    }

    fn wrong_kind(
        &self,
        table: &ProfileTable<'_>,
        name: &'static str,
        value: &Spanned<DeValue<'_>>,
    ) -> ProfileError {
        let kind = table.key(name).kind;
        self.error(value.span(), format!("{name} must be {}", kind.in_words()))
    }
}

/// Returns what was probably meant by one value instead of a list.
fn hint(key: &ProfileKey, value: Written<'_>, source: &Source) -> Option<String> {
    let written = source.written(value.span().into());
    let is_one = match (key.kind, value.get_ref()) {
        (KeyKind::Tables(_), DeValue::Table(_)) if !written.starts_with('{') => {
            return Some("double the brackets".to_owned());
        }
        (KeyKind::Tables(_), DeValue::Table(_)) | (KeyKind::Texts, DeValue::String(_)) => true,
        (KeyKind::WholeNumbers, value) => whole_number(value).is_some(),
        _ => false,
    };
    is_one.then(|| format!("write {} = [{written}]", key.name))
}

impl<'a> ProfileTable<'a> {
    pub(super) fn get(&self, name: &str) -> Option<Written<'a>> {
        self.values.get(name)
    }

    /// The place of a key's value, or of the table.
    pub(super) fn span_of(&self, name: &str) -> Span {
        self.get(name)
            .map_or(self.span, |value| value.span().into())
    }

    fn key(&self, name: &str) -> &'static ProfileKey {
        let key = self.keys.iter().find(|key| key.name == name);
        key.expect("a key of this table is asked for")
    }

    fn keys_under(&self, name: &str) -> &'static [ProfileKey] {
        match self.key(name).kind {
            KeyKind::Table(keys) | KeyKind::Tables(keys) => keys,
            _ => &[],
        }
    }
}

fn whole_number(value: &DeValue<'_>) -> Option<u32> {
    let number = value.as_integer()?;
    u32::from_str_radix(number.as_str(), number.radix()).ok()
}
