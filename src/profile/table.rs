//! Tables of a profile, whose keys and kinds of values are checked.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostic::{ProfileError, Source, Span};
use super::read::{Check, Noted};
use super::schema::{Key, Kind};
use crate::host::nearest;

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
        let found = read(value.get_ref());
        let found = found.ok_or_else(|| {
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
        let elements = list.iter().filter_map(|element| {
            let found = read(element.get_ref());
            if found.is_none() {
                self.note(self.wrong_kind(table, name, element));
            }
            Some((found?, element.span().into()))
        });
        let elements: Vec<(T, Span)> = elements.collect();
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
