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
    let keys = tables.first().into_iter().flat_map(Table::keys);
    keys.filter_map(|key| {
        let mut counts: BTreeMap<String, (usize, &Value)> = BTreeMap::new();
        for table in tables {
            let value = table.get(key)?;
            counts.entry(value.to_string()).or_insert((0, value)).0 += 1;
        }
        let (_, most) = counts.into_values().max_by_key(|(count, _)| *count)?;
        (by_default(key).as_ref() != Some(most)).then(|| (key.clone(), most.clone()))
    })
    .collect()
}
