//! The grammar of Slurm's configuration files: comments, continued lines, keys with values, and included files.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

use crate::error::{CommandError, command_error};
use crate::host::{FileError, directory_of, read_configuration};

/// A key with its value, and quotes around a value with blanks. Slurm has the same expression.
static PAIR: LazyLock<Regex> = LazyLock::new(|| {
    let blank = r"[ \t\n\x0b\x0c\r]";
    let pair = format!(
        r#"^{blank}*([[:alnum:]_.]+){blank}*[-*+/]?={blank}*(?:"([^"]*)"|([^ \t\n\x0b\x0c\r]+))(?:{blank}|$)"#
    );
    Regex::new(&pair).expect("it is an expression")
});

/// A line of keys with values.
#[derive(Clone, Debug)]
pub(super) struct ConfLine {
    /// Its file, unless that is not known, and the number of its first line.
    pub(super) place: String,
    /// The keys in lower case, in order.
    pairs: Vec<(String, String)>,
    /// The first word behind them that is no key with a value.
    pub(super) stray: Option<String>,
}

impl ConfLine {
    fn parse(place: String, text: &str) -> Self {
        let mut pairs = Vec::new();
        let mut rest = text;
        while let Some(found) = PAIR.captures(rest) {
            let value = found.get(2).or(found.get(3)).expect("one of both matched");
            pairs.push((found[1].to_ascii_lowercase(), value.as_str().to_owned()));
            // Slurm goes on behind the value; the quote that ends it is no blank.
            rest = &rest[value.end() + usize::from(found.get(2).is_some())..];
        }
        Self {
            place,
            pairs,
            stray: rest.split_whitespace().next().map(str::to_owned),
        }
    }

    /// Returns the first key, which decides what the line is about, with its value.
    pub(super) fn first_pair(&self) -> Option<(&str, &str)> {
        let (key, value) = self.pairs.first()?;
        Some((key, value))
    }

    /// Returns the value of a key. Slurm takes the last one of several.
    pub(super) fn value(&self, key: &str) -> Option<&str> {
        let (_, value) = self.pairs.iter().rev().find(|(name, _)| name == key)?;
        Some(value)
    }
}

/// The lines of a file, and of those that it includes, in order.
#[derive(Debug, Default)]
pub(super) struct ConfFile {
    pub(super) directory: PathBuf,
    pub(super) lines: Vec<ConfLine>,
    /// The first included file that could not be read: what it says is not known.
    pub(super) unread: Option<CommandError>,
}

impl ConfFile {
    /// Returns the lines of a text. Files that it includes are not read.
    pub(super) fn parse_lines(text: &str) -> Vec<ConfLine> {
        logical_lines(text)
            .into_iter()
            .map(|(number, line)| ConfLine::parse(format!("line {number}"), &line))
            .collect()
    }

    /// Reads a file with those that it includes.
    pub(super) fn load_with_includes(path: &Path) -> Result<Self, CommandError> {
        let mut all = Self {
            directory: directory_of(path).to_owned(),
            ..Self::default()
        };
        all.add_file(path, &mut 0)?;
        Ok(all)
    }

    /// Returns a path that the file names: a relative one begins in the directory of the file.
    pub(super) fn resolve_path(&self, value: &str) -> String {
        self.directory.join(value).display().to_string()
    }

    fn add_file(&mut self, path: &Path, files: &mut usize) -> Result<(), CommandError> {
        *files += 1;
        let shown = path.display();
        if *files > MAX_FILES {
            return Err(command_error(format_args!(
                "{shown}: the files include each other, or there are more than {MAX_FILES}"
            ))
            .with_hint("add the lines of this node to slurm.conf and gres.conf themselves"));
        }
        let text = read_configuration(path).map_err(|error| unreadable_error(path, &error))?;
        for (number, line) in logical_lines(&text) {
            let Some(included) = included_file(&line) else {
                let place = format!("{shown}: line {number}");
                self.lines.push(ConfLine::parse(place, &line));
                continue;
            };
            let included = included.replace("%c", &self.cluster_name());
            if let Err(error) = self.add_file(&path.with_file_name(included), files) {
                self.unread.get_or_insert(error);
                if *files > MAX_FILES {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns the name of the cluster as the names of included files have it.
    fn cluster_name(&self) -> String {
        let names = self.values_of("clustername");
        names
            .last()
            .map_or_else(String::new, |name| name.to_ascii_lowercase())
    }

    /// Returns the types of `GresTypes`, of which Slurm reads the last line.
    pub(super) fn gres_types(&self) -> impl Iterator<Item = &str> {
        let last = self.values_of("grestypes").into_iter().last();
        last.into_iter().flat_map(|list| list.split(','))
    }

    /// Returns the values of a key that begins its line, in lower case here.
    pub(super) fn values_of(&self, key: &str) -> Vec<&str> {
        self.lines
            .iter()
            .filter_map(ConfLine::first_pair)
            .filter(|(name, _)| *name == key)
            .map(|(_, value)| value)
            .collect()
    }
}

/// The most files that are read for one.
const MAX_FILES: usize = 256;

fn unreadable_error(path: &Path, error: &FileError) -> CommandError {
    command_error(format_args!("cannot read {}: {error}", path.display())).with_hint(
        "check SLURM_CONF or /etc/slurm/slurm.conf; gres.conf and included files are in the same directory",
    )
}

/// Returns the file that a line includes.
fn included_file(line: &str) -> Option<&str> {
    let (word, rest) = line.split_once(is_blank)?;
    let file = rest.split(is_blank).find(|word| !word.is_empty())?;
    word.eq_ignore_ascii_case("include").then_some(file)
}

/// Returns the lines without comments and escapes, continued lines joined, each with the number of its first line.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut begun: Option<(usize, String)> = None;
    for (at, line) in text.split('\n').enumerate() {
        let line = without_comment(line);
        let continued = strip_continuation(line);
        let (number, mut whole) = begun.take().unwrap_or((at + 1, String::new()));
        whole.push_str(continued.unwrap_or(line));
        match continued {
            Some(_) => begun = Some((number, whole)),
            None => lines.push((number, whole)),
        }
    }
    lines.extend(begun);
    lines.retain(|(_, line)| !line.trim().is_empty());
    lines
        .into_iter()
        .map(|(number, line)| (number, unescape(&line)))
        .collect()
}

/// Returns what is before the first `#` that is not escaped.
fn without_comment(line: &str) -> &str {
    let is_comment = |&(at, sign): &(usize, char)| sign == '#' && !is_escaped(&line[..at]);
    let comment = line.char_indices().find(is_comment);
    &line[..comment.map_or(line.len(), |(at, _)| at)]
}

/// Returns what is before the backslash that continues a line on the next one.
fn strip_continuation(line: &str) -> Option<&str> {
    let line = line.trim_end_matches(is_blank);
    let part = line.strip_suffix('\\')?;
    (!is_escaped(part)).then_some(part)
}

/// True if what follows this text is escaped.
fn is_escaped(before: &str) -> bool {
    let count = before.len() - before.trim_end_matches('\\').len();
    count % 2 == 1
}

fn unescape(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut signs = line.chars();
    while let Some(sign) = signs.next() {
        match sign {
            '\\' => text.extend(signs.next()),
            sign => text.push(sign),
        }
    }
    text
}

/// True for what C's `isspace` takes for a blank.
fn is_blank(sign: char) -> bool {
    sign.is_ascii_whitespace() || sign == '\x0b'
}
