//! YAML with the places of its values, and the reader's errors in our words.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use regex::Regex;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::DuplicateKeyPolicy;
use serde_saphyr::{Error, Location, Spanned, UserMessageFormatter};

use crate::profile::{ProfileError, Source, Span};

/// A part of a file that is YAML by itself, with its indentation.
#[derive(Clone, Debug)]
pub struct Excerpt {
    /// The file, for errors.
    pub source: Arc<Source>,
    /// Where the part starts in that file, in bytes.
    start: usize,
    /// The line of the file that the source starts with; more than 1 for a text in quotes.
    first_line: usize,
    text: String,
}

impl Excerpt {
    /// A whole file; `path` is for messages only.
    pub fn whole(path: &Path, text: String) -> Self {
        Self {
            source: Arc::new(Source::new(path, text.clone())),
            start: 0,
            first_line: 1,
            text,
        }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// The line of the file that it starts in.
    pub fn line_number(&self) -> usize {
        self.first_line + self.source.line_number(Span::from(self.start..self.start)) - 1
    }

    fn sub_excerpt(&self, range: Range<usize>) -> Self {
        Self {
            source: Arc::clone(&self.source),
            start: self.start + range.start,
            first_line: self.first_line,
            text: self.text[range].to_owned(),
        }
    }

    /// The documents in it.
    pub fn documents(&self) -> Vec<Self> {
        let content = self.text.trim_start_matches(['\n', '\r', ' ']);
        let before = &self.text[..self.text.len() - content.len()];
        let indentation = before.rsplit('\n').next().unwrap_or_default();
        let mut documents = Vec::new();
        let (mut from, mut at) = (0, 0);
        for line in self.text.split_inclusive('\n') {
            let marker = line.strip_prefix(indentation);
            let rest = marker.and_then(|line| line.strip_prefix("---"));
            if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\n', '\r'])) {
                documents.push(self.sub_excerpt(from..at));
                from = at + indentation.len() + "---".len();
            }
            at += line.len();
        }
        documents.push(self.sub_excerpt(from..at));
        documents
    }

    /// The mapping that starts at that value.
    pub fn mapping_at(&self, node: &Spanned<YamlNode>) -> Option<Self> {
        let start = to_usize(node.defined.span().byte_offset())?;
        let line = self.text[..start].rfind('\n').map_or(0, |end| end + 1);
        let column = start - line;
        let rest = &self.text[start..];
        let length = if rest.starts_with('{') {
            length_in_braces(rest)?
        } else {
            length_of_block(rest, column)
        };
        let mut part = self.sub_excerpt(line..start + length);
        part.text.replace_range(..column, &" ".repeat(column));
        Some(part)
    }

    /// The value of that key: a part of this file if the value is written as it is read, as block scalars are.
    #[must_use]
    pub fn scalar_at(&self, node: &Spanned<YamlNode>, value: &str, key: &str) -> Self {
        let span = node.defined.span();
        let start = to_usize(span.byte_offset()).unwrap_or(0);
        let end = start + to_usize(span.byte_len()).unwrap_or(0);
        let line = self.text[..start].rfind('\n').map_or(0, |end| end + 1);
        let indentation = &self.text[line..start];
        // It may end with the indentation of the next line.
        let written = self.text.get(start..end).unwrap_or_default().trim_end();
        let end = start + written.len();
        let written = written
            .lines()
            .map(|line| line.strip_prefix(indentation).unwrap_or(line).trim_end());
        let is_as_written = indentation.trim().is_empty()
            && written.eq(value.trim_end().lines().map(str::trim_end));
        if is_as_written {
            return self.sub_excerpt(line..end);
        }
        let (at, column) = (self.sub_excerpt(start..start), start - line + 1);
        let path = format!(
            "{}:{}:{column}: {key}",
            self.source.path().display(),
            at.line_number()
        );
        Self {
            first_line: at.line_number(),
            ..Self::whole(Path::new(&path), value.to_owned())
        }
    }

    /// Reads it as mig-parted does.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ProfileError> {
        let options = serde_saphyr::options! {
            with_snippet: false,
            duplicate_keys: DuplicateKeyPolicy::LastWins,
            legacy_octal_numbers: true,
        };
        serde_saphyr::from_str_with_options(&self.text, options)
            .map_err(|error| self.translate_error(&error))
    }

    pub fn error_at(&self, at: Location, message: impl Into<String>) -> ProfileError {
        self.source.error_at(self.span(at), message)
    }

    /// The place in this text. Not every error of the reader has it in bytes.
    fn byte_offset(&self, at: Location) -> usize {
        let in_bytes =
            to_usize(at.span().byte_offset()).filter(|start| *start > 0 || at.line() == 1);
        if let Some(start) = in_bytes {
            return start;
        }
        let number = |number: u64| {
            usize::try_from(number)
                .unwrap_or(usize::MAX)
                .saturating_sub(1)
        };
        let lines = self.text.split_inclusive('\n');
        let before: usize = lines.take(number(at.line())).map(str::len).sum();
        let line = self.text[before..].chars().take(number(at.column()));
        before + line.map(char::len_utf8).sum::<usize>()
    }

    /// A place as our messages point at it: the start of what stands there.
    pub fn span(&self, at: Location) -> Span {
        let start = self.start + self.byte_offset(at);
        let line = self.source.text().get(start..).unwrap_or_default();
        let to_its_end = line.find('\n').unwrap_or(line.len());
        let length = to_usize(at.span().byte_len())
            .filter(|length| *length > 0)
            .map_or(to_its_end, |length| length.min(to_its_end));
        Span::from(start..start + length)
    }

    /// The YAML reader's error in our words.
    fn translate_error(&self, error: &Error) -> ProfileError {
        let error = error.without_snippet();
        let nowhere = Span::from(self.start..self.start);
        let span = error.location().map_or(nowhere, |at| self.span(at));
        let message = match error {
            Error::SerdeUnknownField {
                field, expected, ..
            } => return self.source.unknown_key(span, field, expected),
            Error::SerdeMissingField { field, .. } => {
                format!("the key \"{field}\" is missing here")
            }
            // It names the kind of YAML's events that it wants.
            Error::Unexpected { expected, .. } => match *expected {
                "mapping start" => "expected keys with values".to_owned(),
                "sequence start" => "expected a list".to_owned(),
                _ => "expected a word".to_owned(),
            },
            Error::NullIntoString { .. } => "expected a word".to_owned(),
            // The texts of `expecting`.
            Error::Message { msg, .. } => msg.clone(),
            other => {
                let text = other.render_with_formatter(&UserMessageFormatter);
                // It ends with the place, which is shown anyway.
                let why = text.split(" at line ").next().unwrap_or(&text);
                format!("this is not YAML that import can read: {why}")
            }
        };
        let error = self.source.error_at(span, message);
        if self.text.contains("{{") || self.text.contains("{%") {
            return error.with_hint(
                "this is a template: import what it is rendered to, such as the output of helm template",
            );
        }
        error
    }
}

/// The length of a mapping in block style that starts a text, in that column of its line.
fn length_of_block(text: &str, column: usize) -> usize {
    let mut length = 0;
    for (nth, line) in text.split_inclusive('\n').enumerate() {
        let content = line.trim_start_matches(' ');
        let is_inside = line.len() - content.len() >= column;
        if nth > 0 && !is_inside && !content.trim_end().is_empty() && !content.starts_with('#') {
            break;
        }
        length += line.len();
    }
    length
}

/// A part of a mapping in braces: a text in quotes, a comment, a word, a brace or a bracket.
static BRACE_TOKEN: LazyLock<Regex> = LazyLock::new(|| {
    let part = r#"(?s)"(?:\\.|[^"\\])*"|'[^']*'|#[^\n]*|[^\s{}\[\],:"'#][^\s{}\[\],]*|[{}\[\]]"#;
    Regex::new(part).expect("it is an expression")
});

/// The length of a mapping in braces that starts a text, as in JSON.
fn length_in_braces(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for part in BRACE_TOKEN.find_iter(text) {
        match part.as_str() {
            "{" | "[" => depth += 1,
            "}" | "]" => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some(part.end());
        }
    }
    None
}

fn to_usize(number: Option<u64>) -> Option<usize> {
    usize::try_from(number?).ok()
}

/// A value of any YAML.
#[derive(Debug)]
pub enum YamlNode {
    Map(Vec<(YamlNode, Spanned<YamlNode>)>),
    List(Vec<Spanned<YamlNode>>),
    Text(String),
    Other,
}

impl YamlNode {
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = YamlNode;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_str<E>(self, text: &str) -> Result<YamlNode, E> {
        Ok(YamlNode::Text(text.to_owned()))
    }

    fn visit_bool<E>(self, _: bool) -> Result<YamlNode, E> {
        Ok(YamlNode::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<YamlNode, E> {
        Ok(YamlNode::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<YamlNode, E> {
        Ok(YamlNode::Other)
    }

    fn visit_i128<E>(self, _: i128) -> Result<YamlNode, E> {
        Ok(YamlNode::Other)
    }

    fn visit_u128<E>(self, _: u128) -> Result<YamlNode, E> {
        Ok(YamlNode::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<YamlNode, E> {
        Ok(YamlNode::Other)
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<YamlNode, E> {
        Ok(YamlNode::Other)
    }

    fn visit_unit<E>(self) -> Result<YamlNode, E> {
        Ok(YamlNode::Other)
    }

    fn visit_none<E>(self) -> Result<YamlNode, E> {
        Ok(YamlNode::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<YamlNode, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(YamlNode::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<YamlNode, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(YamlNode::Map(map))
    }
}
