//! Lines of logs, as text with explanations and as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::Result;
use console::{Style, StyledObject, measure_text_width, style};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use schemars::JsonSchema;
use serde::Serialize;

use crate::host::join_words;
use crate::mps::{LineKind, LogFile, LogLine};
use crate::render::format::{display_or, escape_text, format_count, wrap_text};
use crate::render::json::to_json_line;

/// The most characters of a line that are shown: a client may write lines without end.
const MAX_LINE_CHARS: usize = 4096;

/// Width of the columns before a line's text: mark, time, file and process id, separated by blanks.
const HEAD_WIDTH: usize = 3 + "17:34:04.858".len() + 1 + "control".len() + 1 + 7 + 2;

/// The least width of a line's text, however narrow the terminal is.
const MIN_TEXT_WIDTH: usize = 20;

/// Formats the lines of a daemon's logs, and remembers what it has shown and explained.
#[derive(Debug, Default)]
pub struct LogView {
    /// The terminal's width; `None` without a terminal: then every line has its date, and none is wrapped.
    width: Option<usize>,
    /// The day of the last line; `None` before the first line of a device.
    day: Option<Date>,
    /// The meanings of the lines shown, each once.
    meanings: Vec<Explained>,
    /// The lines that were not shown since the last note about them.
    left_out: BTreeMap<Omission, usize>,
    /// The omissions that a note has named.
    said: BTreeSet<Omission>,
    is_of_several: bool,
}

/// The reason why a line is not shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Omission {
    Harmless,
    /// A query of a control session, or an answer.
    Session,
}

impl Omission {
    /// `3 harmless lines`
    fn count_lines(self, count: usize) -> String {
        match self {
            Self::Harmless => format_count(count, "harmless line"),
            Self::Session => format!("{} of control sessions", format_count(count, "line")),
        }
    }
}

/// The meaning of a kind of line.
#[derive(Debug)]
struct Explained {
    kind: LineKind,
    why: &'static str,
    /// An example.
    text: Box<str>,
    times: usize,
    is_said: bool,
}

impl LogView {
    /// Returns a view of this width.
    pub fn new(width: Option<usize>) -> Self {
        Self {
            width,
            ..Self::default()
        }
    }

    /// Begins the logs of one of several devices, whose lines that are not shown are counted together.
    pub fn begin_device(&mut self) {
        self.day = None;
        self.is_of_several = true;
    }

    pub fn is_on_terminal(&self) -> bool {
        self.width.is_some()
    }

    /// Notes that a line is not shown.
    pub fn add_omission(&mut self, omission: Omission) {
        *self.left_out.entry(omission).or_default() += 1;
    }

    /// Counts the lines that are not shown; `None` if a note has named these kinds before.
    pub fn count_omissions(&mut self) -> Option<String> {
        let mut counted = Vec::new();
        for (omission, count) in std::mem::take(&mut self.left_out) {
            if self.said.insert(omission) {
                counted.push((omission.count_lines(count), count));
            }
        }
        let (are, them) = match counted.as_slice() {
            [] => return None,
            [(_, 1)] => ("is", "it"),
            _ => ("are", "them"),
        };
        let counted: Vec<String> = counted.into_iter().map(|(text, _)| text).collect();
        Some(format!(
            "{} {are} hidden (--all shows {them})",
            join_words(&counted, "and")
        ))
    }

    /// Formats these lines.
    pub fn render_lines(&mut self, lines: &[LogLine]) -> String {
        let mut text = String::new();
        for line in lines {
            self.render_line(line, &mut text);
        }
        text
    }

    fn render_line(&mut self, line: &LogLine, text: &mut String) {
        let meaning = line.meaning();
        if meaning.kind != LineKind::Chatter
            && let Some(why) = meaning.why
        {
            self.note_meaning(meaning.kind, why, line);
        }
        let written_by = match (line.file, line.tag.as_deref()) {
            (_, None)
            | (LogFile::Control, Some("Control"))
            | (LogFile::Server, Some("Server" | "Other")) => String::new(),
            (_, Some(tag)) => format!("({tag}) "),
        };
        let said = limit_and_escape(&format!("{written_by}{}", line.text.trim_end()));
        // A line without a head belongs to the one before it.
        let at = line.tag.as_ref().and(line.at);
        let (form, long) = match self.width {
            None => ("%Y-%m-%d %H:%M:%S%.3f", "2026-11-20 17:34:04.858".len()),
            Some(_) => ("%H:%M:%S%.3f", "17:34:04.858".len()),
        };
        if let (Some(_), Some(at)) = (self.width, at)
            && self.day.replace(at.date()) != Some(at.date())
        {
            let _ = writeln!(text, "{}", style(format!("   {}", at.date())).bold());
        }
        let time = display_or(at.map(|at| at.strftime(form)), "");
        let file = line.file.name().trim_end_matches(".log");
        let pid = display_or(line.pid, "");
        let parts = match self.width {
            None => vec![said],
            Some(width) => wrap_text(&said, width.saturating_sub(HEAD_WIDTH).max(MIN_TEXT_WIDTH)),
        };
        let room = self.width.unwrap_or(usize::MAX);
        for (nth, part) in parts.into_iter().enumerate() {
            let taken = measure_text_width(&part);
            let said = match meaning.kind {
                LineKind::Fault => style(part).red().bold(),
                LineKind::Refusal => style(part).yellow(),
                LineKind::Benign | LineKind::Chatter => style(part).dim(),
                LineKind::Ordinary | LineKind::Unknown => style(part),
            };
            if nth > 0 {
                // A path that is too long there is indented less, and stays whole.
                let indent = HEAD_WIDTH.min(room.saturating_sub(taken));
                let _ = writeln!(text, "{:indent$}{said}", "");
                continue;
            }
            let head = style(format!("{time:long$} {file:7} {pid:>7}")).dim();
            let line = format!("{}{head}  {said}", kind_mark(meaning.kind, Style::new()));
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }

    fn note_meaning(&mut self, kind: LineKind, why: &'static str, line: &LogLine) {
        match self.meanings.iter_mut().find(|known| known.why == why) {
            Some(known) => {
                known.times += 1;
                known.text.clone_from(&line.text);
            }
            None => self.meanings.push(Explained {
                kind,
                why,
                text: line.text.clone(),
                times: 1,
                is_said: false,
            }),
        }
    }

    /// Explains the lines shown since the last call, each meaning once; empty if all were explained. The worst comes
    /// last, next to the prompt.
    pub fn explain_new_lines(&mut self) -> String {
        let mut text = String::new();
        if !self.is_of_several
            && let Some(count) = self.count_omissions()
        {
            let _ = writeln!(text, "{count}");
        }
        for kind in [
            LineKind::Benign,
            LineKind::Ordinary,
            LineKind::Refusal,
            LineKind::Fault,
        ] {
            let new = self.meanings.iter_mut().filter(|known| known.kind == kind);
            for known in new.filter(|known| !known.is_said) {
                known.is_said = true;
                let times = match known.times {
                    1 => String::new(),
                    times => format!(" ({times} times)"),
                };
                let said = escape_text(&known.text);
                let said = console::truncate_str(&said, 60, "…");
                let mark = kind_mark(kind, Style::new().for_stderr().bold());
                let _ = writeln!(text, "{mark}{said}{times}\n    {}", known.why);
            }
        }
        text.truncate(text.trim_end().len());
        text
    }
}

/// Returns the mark that tells a line's kind without colors.
fn kind_mark(kind: LineKind, style: Style) -> StyledObject<&'static str> {
    match kind {
        LineKind::Fault => style.red().bold().apply_to("!! "),
        LineKind::Refusal => style.yellow().bold().apply_to("!  "),
        LineKind::Benign => style.apply_to("~  "),
        LineKind::Chatter | LineKind::Ordinary | LineKind::Unknown => style.apply_to("   "),
    }
}

/// Escapes the text and limits its length.
fn limit_and_escape(said: &str) -> String {
    let length = said.chars().count();
    if length <= MAX_LINE_CHARS {
        return escape_text(said).into_owned();
    }
    let first: String = said.chars().take(MAX_LINE_CHARS).collect();
    format!(
        "{}… ({} more characters)",
        escape_text(&first),
        length - MAX_LINE_CHARS
    )
}

/// A line of the output of `mig-mps logs --json`: one object for each line of a log.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "log_line")]
pub struct LogLineDocument<'a> {
    /// The device's name; its UUID if the name is not known.
    device: &'a str,
    /// The time with its offset from UTC, as in RFC 3339; that of the line before if the line has none, and null if no
    /// line before has one.
    #[schemars(extend("format" = "date-time"))]
    time: Option<String>,
    /// The name of the file.
    file: &'static str,
    /// The word in brackets, such as `Control`.
    tag: Option<&'a str>,
    /// The process id of the writer; null if the line has none.
    pid: Option<u32>,
    /// The text.
    text: &'a str,
    /// The kind of the line.
    kind: LineKind,
    /// The meaning; null where the text says it all.
    meaning: Option<&'static str>,
}

impl LogLineDocument<'_> {
    /// Formats lines of a device's logs as JSON, one object each. The logs have local time.
    pub fn render_lines(device: &str, lines: &[LogLine]) -> Result<String> {
        let zone = TimeZone::system();
        let mut text = String::new();
        for logged in lines {
            let meaning = logged.meaning();
            let time = logged.at.and_then(|at| at.to_zoned(zone.clone()).ok());
            text += &to_json_line(&LogLineDocument {
                device,
                time: time.map(|time| time.strftime("%Y-%m-%dT%H:%M:%S%.3f%:z").to_string()),
                file: logged.file.name(),
                tag: logged.tag.as_deref(),
                pid: logged.pid,
                text: &logged.text,
                kind: meaning.kind,
                meaning: meaning.why,
            })?;
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_end_has_one_on_the_screen() {
        let shown = limit_and_escape(&"x".repeat(MAX_LINE_CHARS + 7));
        assert!(shown.ends_with("x… (7 more characters)"));
    }
}
