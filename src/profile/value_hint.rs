//! The way in which a wrong value of a setting was probably meant.

use toml::de::DeValue;

use crate::host::closest_match;
use crate::settings::{Cpus, SettingKey, Settings, WrongValue, setting_for_word, setting_named};

/// Returns how a value of another form is written: `"50%"` as `50`, `4` as `"4G"`, and `[0, 1]` as `"0,1"`.
pub(super) fn suggest_rewrite(key: &SettingKey, value: &DeValue<'_>) -> Option<String> {
    if let Some(list) = value.as_array() {
        let of = |value: &DeValue<'_>| match (value.as_str(), value.as_integer()) {
            (Some(text), _) => Some(text.to_owned()),
            (None, number) => number.map(|number| number.as_str().to_owned()),
        };
        let texts = list
            .iter()
            .map(|value| of(value.get_ref()))
            .collect::<Option<Vec<String>>>()?;
        let is_value = |text: &String| (key.parse)(&mut Settings::default(), text).is_ok();
        // Several users share a device as the members of a group.
        let is_of_users = key.words.contains(&"group:NAME");
        let of_users = || match texts.as_slice() {
            [user] => format!("user:{user}"),
            _ => "group:NAME".to_owned(),
        };
        return Some(texts.join(","))
            .filter(is_value)
            .or_else(|| is_of_users.then(of_users))
            .map(|text| format!("\"{text}\""));
    }
    if let Some(text) = value.as_str() {
        return parse_percent(text).map(|number| number.to_string());
    }
    let number = value.as_integer()?.as_str();
    [number.to_owned(), format!("{number}G")]
        .into_iter()
        .find(|text| (key.parse)(&mut Settings::default(), text).is_ok())
        .map(|text| format!("\"{text}\""))
}

/// The most indices of a hint.
const MAX_INDICES: usize = 16;

/// Returns a key with its value for a value of another form: `select = "all"`, `index = "0-3"`, `mps = true`.
pub(super) fn suggest_value(key: &str, value: &DeValue<'_>) -> Option<String> {
    let text = match value {
        DeValue::String(text) => text.as_ref().to_owned(),
        DeValue::Integer(number) => number.as_str().to_owned(),
        DeValue::Boolean(is_true) => is_true.to_string(),
        DeValue::Array(list) => {
            let numbers: Vec<&str> = list
                .iter()
                .map(|one| Some(one.get_ref().as_integer()?.as_str()))
                .collect::<Option<_>>()?;
            numbers.join(",")
        }
        _ => return None,
    };
    // Ranges of GPUs are written as those of CPUs are.
    let indices = text
        .parse::<Cpus>()
        .ok()
        .map(|read| read.numbers().collect())
        .filter(|indices: &Vec<usize>| indices.len() <= MAX_INDICES);
    let is_all = ["all", "*", "any", "true"].contains(&text.as_str());
    let meant = match (key, indices) {
        ("select", Some(indices)) => format!("{{ index = {indices:?} }}"),
        ("select" | "index", None) if is_all => return Some("select = { all = true }".to_owned()),
        ("select", _) if text.starts_with("GPU-") => format!("{{ uuid = \"{text}\" }}"),
        ("select", _) if value.is_str() => format!("{{ product = \"{text}\" }}"),
        ("index", Some(indices)) => format!("{indices:?}"),
        ("all", _) if is_all || text == "1" => "true".to_owned(),
        ("mps", _) if ["true", "on", "yes"].contains(&text.as_str()) => "{}".to_owned(),
        ("mps", _) if ["off", "no", "none", "false"].contains(&text.as_str()) => "false".to_owned(),
        _ => return None,
    };
    Some(format!("{key} = {meant}"))
}

/// The keys that people call otherwise.
const OTHER_KEYS: [(&str, &[&str]); 4] = [
    ("index", &["gpu", "gpus", "id", "ids", "indices", "number"]),
    ("product", &["name", "model", "type"]),
    ("profile", &["size", "type", "slice", "instance"]),
    ("devices", &["device", "instances", "partitions"]),
];

/// The keys of a selector.
const SELECTOR_KEYS: [&str; 5] = ["index", "product", "uuid", "pci", "all"];

/// Returns the hint for a key that is none of a table's, and the key that was meant.
pub(super) fn suggest_key<'k>(name: &str, known: &[&'k str]) -> Option<(String, &'k str)> {
    if known.contains(&"select") && SELECTOR_KEYS.contains(&name) {
        return Some((format!("write select = {{ {name} = … }}"), "select"));
    }
    let setting = setting_named(name).map(|_| name);
    if let Some(setting) = setting.or_else(|| setting_for_word(name))
        && known.contains(&"mps")
    {
        return Some((format!("write mps = {{ {setting} = … }}"), "mps"));
    }
    let (key, _) = OTHER_KEYS
        .iter()
        .find(|(key, words)| known.contains(key) && words.contains(&name))?;
    Some((format!("write {key} instead of {name}"), key))
}

/// Returns the number of a string such as `50%`.
fn parse_percent(text: &str) -> Option<f64> {
    let number = text.trim_end_matches('%').trim_end().parse().ok();
    number.filter(|number: &f64| number.is_finite())
}

/// Words that people have for `all`.
const WORDS_FOR_ALL: [&str; 6] = [
    "everyone",
    "everybody",
    "anyone",
    "anybody",
    "any",
    "shared",
];

/// Returns the hint for a word that is none of those of a setting: the nearest one, or a name with its kind.
pub(super) fn suggest_word(wrong: &WrongValue, text: &str) -> Option<String> {
    let WrongValue::Word(words) = wrong else {
        return None;
    };
    let near = if words.contains(&"all") && WORDS_FOR_ALL.contains(&text) {
        Some("all".to_owned())
    } else {
        nearest_word(words, text)
    };
    near.map(|near| format!("did you mean \"{near}\"?"))
        .or_else(|| suggest_kinds(words, text))
}

/// Returns the word that is written most like this one. A name after a colon stays.
fn nearest_word(words: &[&str], text: &str) -> Option<String> {
    let name = text.split_once(':').map(|(_, name)| name.trim());
    let named: Vec<String> = words
        .iter()
        .map(|word| match (word.split_once(':'), name) {
            (Some((kind, _)), Some(name)) if !name.is_empty() => format!("{kind}:{name}"),
            _ => (*word).to_owned(),
        })
        .collect();
    closest_match(text, named.iter().map(String::as_str)).map(str::to_owned)
}

/// Returns how a name is written that lacks its kind: `alice` is `user:alice` or `group:alice`.
fn suggest_kinds(words: &[&str], name: &str) -> Option<String> {
    // Files of other programs mark groups by a sign.
    let bare = name.trim_start_matches(['@', '%']);
    let (is_group, name) = (bare != name, bare);
    let forms: Vec<String> = words
        .iter()
        .filter_map(|word| word.split_once(':'))
        .filter(|(kind, _)| !is_group || *kind == "group")
        .map(|(kind, _)| format!("\"{kind}:{name}\""))
        .collect();
    let is_name = !name.is_empty() && !name.contains([':', ' ', '"']);
    (is_name && !forms.is_empty()).then(|| format!("write {}", forms.join(" or ")))
}
