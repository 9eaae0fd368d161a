//! The form of a profile file: its tables with the kind and the meaning of each key. They read a file, and make its JSON
//! schema.

use serde_json::{Map, Value, json};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostic::{ProfileError, Span};
use super::read::{Noted, ProfileCheck};
use super::value_hint::{suggest_key, suggest_value};
use super::wanted::FIGURE_RANGE;
use crate::host::closest_match;
use crate::settings::{KEYS, SettingForm, SettingKey};

/// A value with its place in the file.
pub(super) type At<T> = (T, Span);

/// A key of a table: its value if it has one; `Noted` for a wrong one.
pub(super) type KeyValue<T> = Result<Option<At<T>>, Noted>;

/// A value of a profile as TOML has it.
pub(super) type Written<'a> = &'a Spanned<DeValue<'a>>;

/// Makes the tables of a file: each key with its kind, and in its comment its meaning, which editors show. A key whose kind
/// is no `Option` is required. The name is followed by the examples of one and of a list, and by the key that a string in the
/// place of the table means.
macro_rules! tables {
    ($($(#[doc = $about:literal])+ $name:ident $examples:tt $(from $string_key:ident)? { $(#[doc = $meaning:literal] $key:ident: $kind:ty,)+ })+) => {$(
        $(#[doc = $about])+
        pub(super) struct $name<'a> {
            $(#[doc = $meaning] pub(super) $key: Result<$kind, Noted>,)+
        }

        impl<'a> Kind<'a> for $name<'a> {
            const ONE: &'static str = "a table";
            const LIST: &'static str = "a list of tables";
            const EXAMPLES: [&'static str; 2] = $examples;
            $(const STRING_KEY: Option<&'static str> = Some(stringify!($string_key));)?

            fn schema() -> Value {
                object(&[$((stringify!($key), $meaning, <$kind>::is_required(), <$kind>::schema())),+])
            }

            fn read(check: &ProfileCheck<'a>, value: Written<'a>) -> Option<Self> {
                Some(Self::of(check, value.get_ref().as_table()?, value.span().into()))
            }
        }

        impl<'a> $name<'a> {
            /// Reads the table. The mistakes in it are noted.
            pub(super) fn of(check: &ProfileCheck<'a>, table: &'a DeTable<'a>, span: Span) -> Self {
                check.keys(span, table, &[$((stringify!($key), <$kind>::is_required(), <$kind>::EXAMPLE)),+]);
                Self { $($key: Field::get(check, table, stringify!($key)),)+ }
            }
        }
    )+};
}

tables! {
    /// The file itself.
    ProfileTable ["", ""] {
        /// Name of the profile, shown by mig-mps status
        name: Option<At<&'a str>>,
        /// GPU models that the profile is for, as mig-mps check --models lists them
        models: Option<At<Vec<At<&'a str>>>>,
        /// Settings of every device's daemon, or false for devices without daemons
        mps: Option<At<Mps<'a>>>,
        /// true for a file by which container engines find the devices, /var/run/cdi/mig-mps.json; false for none
        cdi: Option<At<bool>>,
        /// Blocks: the first one that selects a GPU applies to it
        gpu: Option<At<Vec<At<BlockTable<'a>>>>>,
    }

    /// A `[[gpu]]` block.
    BlockTable ["", ""] {
        /// GPUs of this block
        select: At<SelectTable<'a>>,
        /// false for the whole GPU as one device, without MIG
        mig: Option<At<bool>>,
        /// Name of the whole GPU's device
        name: Option<At<&'a str>>,
        /// true for all GPUs of the block as one device, for programs that use several
        joint: Option<At<bool>>,
        /// Settings of this block's daemons, or false for devices without daemons
        mps: Option<At<Mps<'a>>>,
        /// MIG devices of each GPU; an empty list for MIG mode without instances
        devices: Option<At<Vec<At<DeviceTable<'a>>>>>,
    }

    /// The selector of a block.
    SelectTable ["{ all = true }", ""] {
        /// Indices of GPUs
        index: Option<At<Vec<At<u32>>>>,
        /// Regular expression for the product name
        product: Option<At<&'a str>>,
        /// UUID of a GPU, or its unique prefix
        uuid: Option<At<&'a str>>,
        /// PCI address of a GPU, such as 0000:17:00.0
        pci: Option<At<&'a str>>,
        /// true for every GPU
        all: Option<At<bool>>,
    }

    /// An entry of `devices`.
    DeviceTable ["", "[ { profile = \"3g\" } ]"] from profile {
        /// Name of the device; {gpu} is the GPU's index, {n} counts
        name: Option<At<&'a str>>,
        /// GPU instance profile, such as 3g, 3g.40gb or 1g+me
        profile: At<&'a str>,
        /// Start of its placement
        at: Option<At<u32>>,
        /// Number of such devices
        count: Option<At<u32>>,
        /// Compute instances that share the GPU instance, such as 1c, 2c
        compute: Option<At<Vec<At<&'a str>>>>,
        /// Settings of the device's daemon, or false for none
        mps: Option<At<Mps<'a>>>,
    }

    /// A file of what programs want, and of figures.
    WantedTable ["", ""] {
        /// Programs, with what each wants
        program: Option<At<Vec<At<ProgramTable<'a>>>>>,
        /// Figures of programs on devices
        measured: Option<At<Vec<At<MeasuredTable<'a>>>>>,
    }

    /// A `[[program]]`.
    ProgramTable ["", ""] {
        /// Name of the program in the figures
        name: At<&'a str>,
        /// Throughput of all its copies together
        rate: Option<At<f64>>,
        /// Number of copies
        copies: Option<At<u32>>,
        /// Least memory of each copy, such as 10G
        memory: Option<At<&'a str>>,
        /// Largest latency in milliseconds
        latency_ms: Option<At<f64>>,
        /// false for a device for each copy, true for any other program, or the names of others
        share: Option<At<Companions<'a>>>,
    }

    /// A `[[measured]]`: copies of a program on one device.
    MeasuredTable ["", ""] {
        /// Name of the program
        program: At<&'a str>,
        /// GPU: a model of the catalog, or NVML's name
        gpu: At<&'a str>,
        /// Instance profile, or whole for a GPU without MIG
        device: At<&'a str>,
        /// Active thread percentage of each copy
        threads: Option<At<f64>>,
        /// Number of copies
        copies: At<u32>,
        /// Throughput of all copies together
        throughput: At<f64>,
        /// runs if the throughput is that of runs of the program, and not of its own figure
        counts: Option<At<&'a str>>,
        /// Device memory of all copies together, such as 9.5G
        memory: Option<At<&'a str>>,
        /// Latency in milliseconds
        latency_ms: Option<At<f64>>,
    }
}

/// A value of `share` of a program: the other programs that may share a device with it.
pub(super) enum Companions<'a> {
    Any(bool),
    Named(Vec<&'a str>),
}

impl<'a> Kind<'a> for Companions<'a> {
    const ONE: &'static str = "true, false or a list of names";

    fn schema() -> Value {
        json!({ "anyOf": [{ "type": "boolean" }, { "type": "array", "items": { "type": "string" } }] })
    }

    fn read(_: &ProfileCheck<'a>, value: Written<'a>) -> Option<Self> {
        match value.get_ref() {
            DeValue::Boolean(any) => Some(Self::Any(*any)),
            DeValue::Array(names) => names
                .iter()
                .map(|name| name.get_ref().as_str())
                .collect::<Option<_>>()
                .map(Self::Named),
            _ => None,
        }
    }
}

/// A value of `mps`: settings, by the names of [`KEYS`].
#[derive(Clone, Copy)]
pub(super) enum Mps<'a> {
    Off,
    Settings(&'a DeTable<'a>),
}

/// A kind of value.
trait Kind<'a>: Sized {
    /// Describes a value.
    const ONE: &'static str;
    /// Describes a list of values.
    const LIST: &'static str = "a list";
    /// A value, and a list of values, as they are written; empty if that says no more than their descriptions.
    const EXAMPLES: [&'static str; 2] = [""; 2];
    /// The key of a table whose value a string in the place of the table means.
    const STRING_KEY: Option<&'static str> = None;

    fn schema() -> Value;

    /// Reads a value; `None` for one of another kind.
    fn read(check: &ProfileCheck<'a>, value: Written<'a>) -> Option<Self>;
}

impl<'a> Kind<'a> for &'a str {
    const ONE: &'static str = "a string";
    const LIST: &'static str = "a list of strings";

    fn schema() -> Value {
        json!({ "type": "string" })
    }

    fn read(_: &ProfileCheck<'a>, value: Written<'a>) -> Option<Self> {
        value.get_ref().as_str()
    }
}

impl<'a> Kind<'a> for bool {
    const ONE: &'static str = "true or false";

    fn schema() -> Value {
        json!({ "type": "boolean" })
    }

    fn read(_: &ProfileCheck<'a>, value: Written<'a>) -> Option<Self> {
        value.get_ref().as_bool()
    }
}

impl<'a> Kind<'a> for u32 {
    const ONE: &'static str = "a whole number from 0 to 4294967295";
    const LIST: &'static str = "a list of whole numbers";
    const EXAMPLES: [&'static str; 2] = ["", "[0, 1, 2]"];

    fn schema() -> Value {
        json!({ "type": "integer", "minimum": 0, "maximum": Self::MAX })
    }

    fn read(_: &ProfileCheck<'a>, value: Written<'a>) -> Option<Self> {
        let number = value.get_ref().as_integer()?;
        Self::from_str_radix(number.as_str(), number.radix()).ok()
    }
}

impl<'a> Kind<'a> for f64 {
    const ONE: &'static str = "a number above 0";

    fn schema() -> Value {
        json!({ "type": "number", "exclusiveMinimum": 0 })
    }

    fn read(_: &ProfileCheck<'a>, value: Written<'a>) -> Option<Self> {
        let number = match value.get_ref() {
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().parse().ok(),
            DeValue::Float(number) => number.as_str().parse().ok(),
            _ => None,
        };
        number.filter(|number: &f64| FIGURE_RANGE.contains(number))
    }
}

impl<'a> Kind<'a> for Mps<'a> {
    const ONE: &'static str = "a table of settings, or false";

    fn schema() -> Value {
        let settings: Map<String, Value> = KEYS
            .iter()
            .flat_map(|key| key.accepted_names().map(move |name| (name, key)))
            .map(|(name, key)| (name.to_owned(), setting_schema(key)))
            .collect();
        // Both names of one setting exclude each other.
        let two_names: Vec<Value> = KEYS
            .iter()
            .filter_map(|key| Some(json!({ "required": [key.name, key.short_name()?] })))
            .collect();
        let table = json!({
            "type": "object",
            "properties": settings,
            "additionalProperties": false,
            "not": { "anyOf": two_names },
        });
        json!({ "anyOf": [{ "const": false }, table] })
    }

    fn read(_: &ProfileCheck<'a>, value: Written<'a>) -> Option<Self> {
        match value.get_ref() {
            DeValue::Boolean(false) => Some(Self::Off),
            value => value.as_table().map(Self::Settings),
        }
    }
}

/// The value of a key.
trait Field<'a>: Sized {
    /// A value as it is written; empty if there is no example.
    const EXAMPLE: &'static str = "";

    /// True if a table cannot be without it.
    fn is_required() -> bool {
        false
    }

    fn schema() -> Value;

    /// Returns what a table has under a key, or notes that this is of another kind.
    fn get(check: &ProfileCheck<'a>, table: &'a DeTable<'a>, key: &str) -> Result<Self, Noted>;
}

impl<'a, T: Kind<'a>> Field<'a> for At<T> {
    const EXAMPLE: &'static str = T::EXAMPLES[0];

    fn is_required() -> bool {
        true
    }

    fn schema() -> Value {
        T::schema()
    }

    fn get(check: &ProfileCheck<'a>, table: &'a DeTable<'a>, key: &str) -> Result<Self, Noted> {
        // A missing one is noted with the other keys.
        let value = table.get(key).ok_or(Noted)?;
        let Some(read) = T::read(check, value) else {
            let error = check.error_at(value.span(), format!("{key} must be {}", T::ONE));
            return Err(check.note(match suggest_value(key, value.get_ref()) {
                Some(meant) => error.with_hint(format!("write {meant}")),
                None => with_example(error, key, T::EXAMPLES[0]),
            }));
        };
        Ok((read, value.span().into()))
    }
}

impl<'a, T: Kind<'a>> Field<'a> for Option<At<T>> {
    fn schema() -> Value {
        T::schema()
    }

    fn get(check: &ProfileCheck<'a>, table: &'a DeTable<'a>, key: &str) -> Result<Self, Noted> {
        let is_there = table.contains_key(key);
        is_there.then(|| At::get(check, table, key)).transpose()
    }
}

impl<'a, T: Kind<'a>> Field<'a> for Option<At<Vec<At<T>>>> {
    fn schema() -> Value {
        json!({ "type": "array", "items": T::schema() })
    }

    /// Returns the right elements of a list; the wrong ones are noted.
    fn get(check: &ProfileCheck<'a>, table: &'a DeTable<'a>, key: &str) -> Result<Self, Noted> {
        let Some(value) = table.get(key) else {
            return Ok(None);
        };
        let must = format!("{key} must be {}", T::LIST);
        let Some(list) = value.get_ref().as_array() else {
            let error = check.error_at(value.span(), must);
            let written = check.source.text_at(value.span().into());
            if let Some(meant) = suggest_value(key, value.get_ref()) {
                return Err(check.note(error.with_hint(format!("write {meant}"))));
            }
            return Err(check.note(match T::read(check, value) {
                None => with_example(error, key, T::EXAMPLES[1]),
                Some(_) if value.get_ref().is_table() && !written.starts_with('{') => {
                    error.with_hint("double the brackets")
                }
                Some(_) => error.with_hint(format!("write {key} = [{written}]")),
            }));
        };
        let mut elements = Vec::new();
        for element in list {
            if let Some(read) = T::read(check, element) {
                elements.push((read, element.span().into()));
            } else {
                let error = check.error_at(element.span(), must.as_str());
                check.note(match T::STRING_KEY {
                    Some(key) if element.get_ref().is_str() => {
                        let written = check.source.text_at(element.span().into());
                        error.with_hint(format!("write {{ {key} = {written} }}"))
                    }
                    _ => with_example(error, key, T::EXAMPLES[1]),
                });
            }
        }
        if elements.is_empty() && !list.is_empty() {
            return Err(Noted);
        }
        Ok(Some((elements, value.span().into())))
    }
}

/// Adds how a key is written.
fn with_example(error: ProfileError, key: &str, example: &str) -> ProfileError {
    if example.is_empty() {
        error
    } else {
        error.with_hint(format!("such as {key} = {example}"))
    }
}

impl ProfileCheck<'_> {
    /// Notes the keys that a table should not have, and those that it should; with each key, true if it is required, and an
    /// example of its value.
    fn keys(&self, span: Span, table: &DeTable<'_>, keys: &[(&str, bool, &str)]) {
        let known: Vec<&str> = keys.iter().map(|(key, ..)| *key).collect();
        let mut meant = Vec::new();
        for name in table.keys() {
            let (name, span) = (name.get_ref(), name.span());
            if !known.contains(&name.as_ref()) {
                let error = self.source.unknown_key(span, name, &known);
                self.note(match suggest_key(name, &known) {
                    Some((hint, key)) => {
                        meant.push(key);
                        error.with_hint(hint)
                    }
                    None => error,
                });
                meant.extend(closest_match(name, known.iter().copied()));
            }
        }
        for (key, is_required, example) in keys {
            if *is_required && !table.contains_key(*key) && !meant.contains(key) {
                let message = format!("the key \"{key}\" is missing here");
                self.note(with_example(self.error_at(span, message), key, example));
            }
        }
    }
}

/// Returns the JSON schema of a profile file.
pub fn profile_schema() -> Value {
    let mut schema = ProfileTable::schema();
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("Profile of mig-mps");
    schema
}

/// The schema of a table with these keys: name, meaning, true if it is required, and the schema of its value.
fn object(keys: &[(&str, &str, bool, Value)]) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for (key, meaning, is_required, schema) in keys {
        let mut schema = schema.clone();
        schema["description"] = json!(meaning.trim_start());
        properties.insert((*key).to_owned(), schema);
        if *is_required {
            required.push(*key);
        }
    }
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn setting_schema(key: &SettingKey) -> Value {
    match key.form {
        SettingForm::Number => json!({ "type": "number" }),
        SettingForm::WholeNumber => json!({ "type": "integer" }),
        SettingForm::Text if key.words.is_empty() => json!({ "type": "string" }),
        SettingForm::Text => {
            let patterns: Vec<String> = key
                .words
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
