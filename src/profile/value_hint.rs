//! The way in which a wrong value of a setting was probably meant.

use toml::de::DeValue;

use crate::host::closest_match;
use crate::settings::{SettingKey, Settings, WrongValue};

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
    let name = text.split_once(':').map(|(_, name)| name);
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
    let forms: Vec<String> = words
        .iter()
        .filter_map(|word| word.split_once(':'))
        .map(|(kind, _)| format!("\"{kind}:{name}\""))
        .collect();
    let is_name = !name.is_empty() && !name.contains([':', ' ', '"']);
    (is_name && !forms.is_empty()).then(|| format!("write {}", forms.join(" or ")))
}
