//! The form of a profile file: a table of keys for each of its tables. They check a file, and make its JSON schema.

use serde_json::{Map, Value, json};

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
            let patterns = key.words().iter().map(|word| match word.split_once(':') {
                Some((kind, _)) => format!("{kind}:.+"),
                None => (*word).to_owned(),
            });
            let patterns: Vec<String> = patterns.collect();
            json!({ "type": "string", "pattern": format!("^({})$", patterns.join("|")) })
        }
    }
}
