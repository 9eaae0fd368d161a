//! Mistakes in a profile, shown with the lines they are in.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use thiserror::Error;

use crate::failure::{ExitStatus, Failure};
use crate::host::{FileError, closest_match};

/// A stretch of a profile's text, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    start: usize,
    end: usize,
}

impl From<Range<usize>> for Span {
    fn from(range: Range<usize>) -> Self {
        Self {
            start: range.start,
            end: range.end,
        }
    }
}

/// A profile's path and text, kept for messages.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    /// The text of the file at `path`.
    pub fn new(path: &Path, text: String) -> Self {
        Self {
            path: path.to_owned(),
            text,
        }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// The file's path, as the user gave it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the first key of a text that has keys as YAML has them, and none as TOML has them.
    pub fn yaml_key(&self) -> Option<Span> {
        if self.text.contains('=') {
            return None;
        }
        let mut start = 0;
        for line in self.text.split_inclusive('\n') {
            let indent = line.len() - line.trim_start_matches([' ', '-']).len();
            if let Some((key, _)) = line[indent..].split_once(':')
                && !key.is_empty()
                && key
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
            {
                return Some((start + indent..start + indent + key.len()).into());
            }
            start += line.len();
        }
        None
    }

    /// Returns an error of the parser, in our words.
    pub fn syntax_error(self: &Arc<Self>, span: Span, message: &str) -> ProfileError {
        let word = self.text_at(span).trim();
        let meant = match word.to_ascii_lowercase().as_str() {
            "on" | "yes" | "true" => "true",
            "off" | "no" | "false" => "false",
            _ if message.starts_with("invalid date") && is_range(word) => {
                let error = self.error_at(span, "TOML has no ranges of numbers");
                return error.with_hint(format!(
                    "write each number, such as [0, 1], or \"{word}\" for a string"
                ));
            }
            _ => return self.error_at(span, message.replace('`', "\"")),
        };
        let error = self.error_at(
            span,
            format!("{word} is not a value: it is {meant} in TOML"),
        );
        error.with_hint(format!("write {meant}, or \"{word}\" for a string"))
    }

    /// Returns the error of a quotation mark on the line of a mistake, of which the parser sees only what follows from it.
    pub fn quotation_error(self: &Arc<Self>, mistake: Span) -> Option<ProfileError> {
        let at = floor_char(&self.text, mistake.start);
        let start = self.text[..at].rfind('\n').map_or(0, |end| end + 1);
        let end = self.text[start..]
            .find('\n')
            .map_or(self.text.len(), |length| start + length);
        let WrongMark { at, mark, fault } = find_wrong_mark(&self.text, start..end)?;
        let (what, hint) = match fault {
            MarkFault::NotOfToml => (
                format!("{mark} is not a quotation mark of TOML"),
                "write \"".to_owned(),
            ),
            MarkFault::Unclosed => (
                "this string has no closing quotation mark".to_owned(),
                format!("add {mark} at its end"),
            ),
            MarkFault::NotInPairs => (
                "the quotation marks on this line are not in pairs".to_owned(),
                "add or remove a quotation mark".to_owned(),
            ),
        };
        let error = self.error_at(at..at + mark.len_utf8(), what);
        Some(error.with_hint(hint))
    }

    /// Returns the text of a span.
    pub fn text_at(&self, span: Span) -> &str {
        let start = floor_char(&self.text, span.start);
        let end = floor_char(&self.text, span.end.max(start));
        &self.text[start..end]
    }

    /// The line of a place in this text, from 1.
    pub fn line_number(&self, span: Span) -> usize {
        let start = floor_char(&self.text, span.start);
        self.text[..start].matches('\n').count() + 1
    }

    /// An error at a place in this text.
    pub fn error_at(
        self: &Arc<Self>,
        span: impl Into<Span>,
        message: impl Into<String>,
    ) -> ProfileError {
        ProfileError::At(vec![Mistake {
            source: Arc::clone(self),
            span: span.into(),
            message: message.into(),
            hint: None,
        }])
    }

    /// The error of a key that is none of those known.
    pub fn unknown_key(
        self: &Arc<Self>,
        span: impl Into<Span>,
        key: &str,
        known: &[&str],
    ) -> ProfileError {
        let error = self.error_at(span, format!("unknown key \"{key}\""));
        error.with_hint(match closest_match(key, known.iter().copied()) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("expected one of \"{}\"", known.join("\", \"")),
        })
    }
}

/// The error of an invalid profile. Exit status 2.
#[derive(Debug, Error)]
pub enum ProfileError {
    /// The file cannot be read.
    #[error("cannot read the profile {}: {error}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// The system's error.
        error: FileError,
    },
    /// Something in it is wrong, in file order.
    #[error("{}", format_mistakes(.0))]
    At(Vec<Mistake>),
}

impl Failure for ProfileError {
    fn status(&self) -> ExitStatus {
        ExitStatus::Usage
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Unreadable { error, .. } => error.hint(),
            Self::At(_) => None,
        }
    }
}

impl ProfileError {
    /// Returns the first message without its position.
    pub fn first_message(&self) -> String {
        match self {
            Self::At(mistakes) if !mistakes.is_empty() => mistakes[0].message.clone(),
            _ => self.to_string(),
        }
    }

    /// Joins errors, in file order and each once.
    pub fn from_errors(errors: Vec<Self>) -> Option<Self> {
        let mut mistakes = Vec::new();
        for error in errors {
            match error {
                Self::At(more) => mistakes.extend(more),
                unreadable @ Self::Unreadable { .. } => return Some(unreadable),
            }
        }
        mistakes.sort_by_key(|mistake: &Mistake| mistake.span.start);
        mistakes.dedup_by(|a, b| a.span == b.span && a.message == b.message);
        (!mistakes.is_empty()).then_some(Self::At(mistakes))
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        if let Self::At(mistakes) = &mut self
            && let Some(last) = mistakes.last_mut()
        {
            last.hint = Some(hint.into());
        }
        self
    }
}

/// The most mistakes that are shown.
const MAX_SHOWN_MISTAKES: usize = 20;

/// True for `0-3`.
fn is_range(word: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    word.split_once('-')
        .is_some_and(|(first, last)| is_number(first) && is_number(last))
}

fn format_mistakes(mistakes: &[Mistake]) -> String {
    let mut shown: Vec<String> = mistakes
        .iter()
        .take(MAX_SHOWN_MISTAKES)
        .map(Mistake::to_string)
        .collect();
    if mistakes.len() > MAX_SHOWN_MISTAKES {
        shown.push(format!(
            "and {} more mistakes",
            mistakes.len() - MAX_SHOWN_MISTAKES
        ));
    }
    shown.join("\n")
}

/// A mistake at one place of a profile. It prints with the line it is on:
///
/// ```text
/// profile.toml:7:14: unknown key "prfile"
///   |
/// 7 |   { name = "a", prfile = "3g" },
///   |                 ^^^^^^ did you mean "profile"?
/// ```
#[derive(Debug)]
pub struct Mistake {
    source: Arc<Source>,
    span: Span,
    message: String,
    hint: Option<String>,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.source.text();
        let start = floor_char(text, self.span.start);
        let before = text[..start].rsplit('\n').next().unwrap_or_default();
        let marked = self.source.text_at(self.span).lines().next();
        let (path, line) = (
            self.source.path().display(),
            self.source.line_number(self.span),
        );
        let column = before.chars().count() + 1;
        writeln!(f, "{path}:{line}:{column}: {}", self.message)?;
        let hint = self.hint.as_deref();
        let beside = hint.filter(|hint| !hint.contains('\n'));
        let below = hint.filter(|hint| hint.contains('\n'));
        let mark = AnnotationKind::Primary.span(start..start + marked.map_or(0, str::len));
        let snippet = Snippet::source(text).annotation(mark.label(beside));
        let excerpt = [Group::with_level(Level::ERROR).element(snippet)];
        f.write_str(&Renderer::plain().render(&excerpt))?;
        match below {
            Some(hint) => write!(f, "\n{hint}"),
            None => Ok(()),
        }
    }
}

fn floor_char(text: &str, index: usize) -> usize {
    let index = index.min(text.len());
    (0..=index)
        .rev()
        .find(|&i| text.is_char_boundary(i))
        .unwrap_or(0)
}

/// A wrong quotation mark, and its place in the text.
struct WrongMark {
    at: usize,
    mark: char,
    fault: MarkFault,
}

/// What is wrong with a quotation mark.
enum MarkFault {
    NotOfToml,
    Unclosed,
    NotInPairs,
}

/// The part of TOML that a character belongs to. A string has its quotation mark.
#[derive(Clone, Copy)]
enum TomlPart {
    Nothing,
    Comment,
    String(char),
    MultilineString(char),
}

/// Finds the wrong quotation mark on a line of a profile, and its place. The lines before it are read too: one of them may begin
/// a string of several lines.
fn find_wrong_mark(text: &str, line: Range<usize>) -> Option<WrongMark> {
    let mut part = TomlPart::Nothing;
    let mut marks: Vec<(usize, char)> = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..line.end].chars().next() {
        let alike = text[at..].chars().take(5).take_while(|next| *next == c);
        let same = alike.count();
        let mut length = c.len_utf8();
        part = match part {
            TomlPart::Nothing | TomlPart::Comment | TomlPart::String(_) if c == '\n' => {
                marks.clear();
                TomlPart::Nothing
            }
            TomlPart::Nothing if c == '#' => TomlPart::Comment,
            TomlPart::Nothing if is_toml_mark(c) && same >= 3 => {
                length = 3;
                TomlPart::MultilineString(c)
            }
            TomlPart::Nothing if is_toml_mark(c) => {
                marks.push((at, c));
                TomlPart::String(c)
            }
            TomlPart::Nothing if line.start <= at && "“”„‘’".contains(c) => {
                let fault = MarkFault::NotOfToml;
                return Some(WrongMark { at, mark: c, fault });
            }
            TomlPart::String('"') | TomlPart::MultilineString('"') if c == '\\' => {
                let escaped = text[at + 1..].chars().next().filter(|next| *next != '\n');
                length += escaped.map_or(0, char::len_utf8);
                part
            }
            TomlPart::String(mark) if c == mark => {
                marks.push((at, c));
                TomlPart::Nothing
            }
            // Up to two marks before the last three are text.
            TomlPart::MultilineString(mark) if c == mark && same >= 3 => {
                length = same;
                TomlPart::Nothing
            }
            part => part,
        };
        at += length;
    }
    if !matches!(part, TomlPart::String(_)) {
        return None;
    }
    let &(at, mark) = marks.first()?;
    let fault = if marks.len() == 1 {
        MarkFault::Unclosed
    } else {
        MarkFault::NotInPairs
    };
    Some(WrongMark { at, mark, fault })
}

fn is_toml_mark(c: char) -> bool {
    c == '"' || c == '\''
}
