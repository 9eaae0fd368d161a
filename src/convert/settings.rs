//! Settings of daemons as the tables of a profile.

use std::collections::BTreeMap;

use toml::{Table, Value};

use crate::settings::Settings;

/// Settings as a profile writes them.
pub(super) fn table(settings: &Settings) -> Table {
    let table = Table::try_from(settings).unwrap_or_default();
    let plain = |(key, value)| match value {
        // 50 and not 50.0
        #[allow(
            clippy::cast_possible_truncation,
            reason = "it is a whole number up to 100"
        )]
        Value::Float(number) if number.fract() == 0.0 => (key, Value::Integer(number as i64)),
        value => (key, value),
    };
    table.into_iter().map(plain).collect()
}

/// The value of a setting that a profile omits.
pub(super) fn by_default(key: &str) -> Option<Value> {
    table(&Settings::default()).remove(key)
}

/// Of the settings that every device has, the most frequent value of each that is not the default.
pub(super) fn shared(tables: &[Table]) -> Table {
    let mut shared = Table::new();
    let Some(first) = tables.first() else {
        return shared;
    };
    for key in first.keys() {
        let values: Vec<&Value> = tables.iter().filter_map(|table| table.get(key)).collect();
        if values.len() < tables.len() {
            continue;
        }
        let mut counts: BTreeMap<String, (usize, &Value)> = BTreeMap::new();
        for value in values {
            counts.entry(value.to_string()).or_insert((0, value)).0 += 1;
        }
        let most = counts.into_values().max_by_key(|(count, _)| *count);
        if let Some((_, value)) = most.filter(|(_, value)| by_default(key).as_ref() != Some(*value))
        {
            shared.insert(key.clone(), value.clone());
        }
    }
    shared
}
