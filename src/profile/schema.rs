//! The form of a profile file: a table of keys for each of its tables. They check a file, and make its JSON schema.

use serde_json::{Map, Value, json};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostic::{ProfileError, Source, Span};
use super::read::{Check, Noted};
use crate::host::nearest;
use crate::settings::{Form, KEYS, SettingKey};

/// A key of a table.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) is_required: bool,
    /// Its meaning, for editors.
    meaning: &'static str,
}

/// The kind of a key's value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Text,
    WholeNumber,
    Flag,
    Texts,
    WholeNumbers,
    Table(&'static [Key]),
    Tables(&'static [Key]),
    /// A table of the keys of [`KEYS`], or `false`.
    Mps,
}

impl Kind {
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

const fn key(name: &'static str, kind: Kind, meaning: &'static str) -> Key {
    Key {
        name,
        kind,
        is_required: false,
        meaning,
    }
}

const fn required(name: &'static str, kind: Kind, meaning: &'static str) -> Key {
    Key {
        is_required: true,
        ..key(name, kind, meaning)
    }
}

/// The keys of the file itself.
pub(super) const PROFILE: &[Key] = &[
    key(
        "name",
        Kind::Text,
        "Name of the profile, shown by mig-mps status",
    ),
    key(
        "models",
        Kind::Texts,
        "GPU models that the profile is for, as mig-mps check --models lists them",
    ),
    key(
        "mps",
        Kind::Mps,
        "Settings of every device's daemon, or false for devices without daemons",
    ),
    key(
        "cdi",
        Kind::Flag,
        "true for a file by which container engines find the devices, /var/run/cdi/mig-mps.json; false for none",
    ),
    key(
        "gpu",
        Kind::Tables(GPU),
        "Blocks: the first one that selects a GPU applies to it",
    ),
];

const GPU: &[Key] = &[
    required("select", Kind::Table(SELECT), "GPUs of this block"),
    key(
        "mig",
        Kind::Flag,
        "false for the whole GPU as one device, without MIG",
    ),
    key("name", Kind::Text, "Name of the whole GPU's device"),
    key(
        "mps",
        Kind::Mps,
        "Settings of this block's daemons, or false for devices without daemons",
    ),
    key(
        "devices",
        Kind::Tables(DEVICE),
        "MIG devices of each GPU; an empty list for MIG mode without instances",
    ),
];

const SELECT: &[Key] = &[
    key("index", Kind::WholeNumbers, "Indices of GPUs"),
    key(
        "product",
        Kind::Text,
        "Regular expression for the product name",
    ),
    key("uuid", Kind::Text, "UUID of a GPU, or its unique prefix"),
    key(
        "pci",
        Kind::Text,
        "PCI address of a GPU, such as 0000:17:00.0",
    ),
    key("all", Kind::Flag, "true for every GPU"),
];

const DEVICE: &[Key] = &[
    key(
        "name",
        Kind::Text,
        "Name of the device; {gpu} is the GPU's index, {n} counts",
    ),
    required(
        "profile",
        Kind::Text,
        "GPU instance profile, such as 3g, 3g.40gb or 1g+me",
    ),
    key("at", Kind::WholeNumber, "Start of its placement"),
    key("count", Kind::WholeNumber, "Number of such devices"),
    key(
        "compute",
        Kind::Texts,
        "Compute instances that share the GPU instance, such as 1c, 2c",
    ),
    key(
        "mps",
        Kind::Mps,
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

fn object(keys: &[Key]) -> Value {
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

fn of_kind(kind: Kind) -> Value {
    let text = || json!({ "type": "string" });
    let number = || json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX });
    match kind {
        Kind::Text => text(),
        Kind::WholeNumber => number(),
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Texts => json!({ "type": "array", "items": text() }),
        Kind::WholeNumbers => json!({ "type": "array", "items": number() }),
        Kind::Table(keys) => object(keys),
        Kind::Tables(keys) => json!({ "type": "array", "items": object(keys) }),
        Kind::Mps => {
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
        Form::Number => json!({ "type": "number" }),
        Form::WholeNumber => json!({ "type": "integer" }),
        Form::Text if key.words().is_empty() => json!({ "type": "string" }),
        Form::Text => {
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
pub(super) struct Table<'a> {
    pub(super) span: Span,
    keys: &'static [Key],
    values: &'a DeTable<'a>,
}

impl<'a> Check<'a> {
    /// Checks the keys of a table.
    pub(super) fn table(
        &self,
        span: Span,
        table: &'a DeTable<'a>,
        keys: &'static [Key],
    ) -> Table<'a> {
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
        Table {
            span,
            keys,
            values: table,
        }
    }

    /// Returns a key's string.
    pub(super) fn text(
        &self,
        table: &Table<'a>,
        name: &'static str,
    ) -> Result<Option<(&'a str, Span)>, Noted> {
        self.value(table, name, |value| value.as_str())
    }

    pub(super) fn flag(
        &self,
        table: &Table<'a>,
        name: &'static str,
    ) -> Result<Option<(bool, Span)>, Noted> {
        self.value(table, name, DeValue::as_bool)
    }

    pub(super) fn whole_number(
        &self,
        table: &Table<'a>,
        name: &'static str,
    ) -> Result<Option<(u32, Span)>, Noted> {
        self.value(table, name, whole_number)
    }

    pub(super) fn texts(
        &self,
        table: &Table<'a>,
        name: &'static str,
    ) -> Result<Option<Vec<(&'a str, Span)>>, Noted> {
        self.values(table, name, |value| value.as_str())
    }

    pub(super) fn whole_numbers(
        &self,
        table: &Table<'a>,
        name: &'static str,
    ) -> Result<Option<Vec<(u32, Span)>>, Noted> {
        self.values(table, name, whole_number)
    }

    /// Returns the table under a key.
    pub(super) fn table_in(
        &self,
        table: &Table<'a>,
        name: &'static str,
    ) -> Result<Option<Table<'a>>, Noted> {
        let found = self.value(table, name, DeValue::as_table)?;
        let keys = table.keys_under(name);
        Ok(found.map(|(found, span)| self.table(span, found, keys)))
    }

    /// Returns the tables under a key.
    pub(super) fn tables(
        &self,
        table: &Table<'a>,
        name: &'static str,
    ) -> Result<Option<Vec<Table<'a>>>, Noted> {
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
        table: &Table<'a>,
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
        table: &Table<'a>,
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
        table: &Table<'_>,
        name: &'static str,
        value: &Spanned<DeValue<'_>>,
    ) -> ProfileError {
        let kind = table.key(name).kind;
        self.error(value.span(), format!("{name} must be {}", kind.in_words()))
    }
}

/// Returns what was probably meant by one value instead of a list.
fn hint(key: &Key, value: Written<'_>, source: &Source) -> Option<String> {
    let written = source.written(value.span().into());
    let is_one = match (key.kind, value.get_ref()) {
        (Kind::Tables(_), DeValue::Table(_)) if !written.starts_with('{') => {
            return Some("double the brackets".to_owned());
        }
        (Kind::Tables(_), DeValue::Table(_)) | (Kind::Texts, DeValue::String(_)) => true,
        (Kind::WholeNumbers, value) => whole_number(value).is_some(),
        _ => false,
    };
    is_one.then(|| format!("write {} = [{written}]", key.name))
}

impl<'a> Table<'a> {
    pub(super) fn get(&self, name: &str) -> Option<Written<'a>> {
        self.values.get(name)
    }

    /// The place of a key's value, or of the table.
    pub(super) fn span_of(&self, name: &str) -> Span {
        self.get(name)
            .map_or(self.span, |value| value.span().into())
    }

    fn key(&self, name: &str) -> &'static Key {
        let key = self.keys.iter().find(|key| key.name == name);
        key.expect("a key of this table is asked for")
    }

    fn keys_under(&self, name: &str) -> &'static [Key] {
        match self.key(name).kind {
            Kind::Table(keys) | Kind::Tables(keys) => keys,
            _ => &[],
        }
    }
}

fn whole_number(value: &DeValue<'_>) -> Option<u32> {
    let number = value.as_integer()?;
    u32::from_str_radix(number.as_str(), number.radix()).ok()
}
