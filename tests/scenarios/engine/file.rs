//! The text of a scenario file.

use std::fmt::Write;

/// The indentation of a line that belongs to the line above it.
const INDENT: &str = "  ";

/// A line that begins at the margin, with the indented lines below it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    /// Its number in the file, from 1.
    pub(crate) line: usize,
    pub(crate) head: String,
    /// Without the indentation. An empty line counts if an indented one follows.
    pub(crate) body: Vec<String>,
}

impl Part {
    /// The lines below it, as a file has them.
    pub(crate) fn text(&self) -> String {
        let lines = self.body.iter().map(String::as_str);
        lines.flat_map(|line| [line, "\n"]).collect()
    }
}

pub(crate) fn parse(text: &str) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(line) = line.strip_prefix(INDENT) {
            let empty = parts.iter().rev().take_while(|part| part.head.is_empty());
            let empty = empty.count();
            parts.truncate(parts.len() - empty);
            let part = parts
                .last_mut()
                .expect("the first line begins at the margin");
            part.body.extend(vec![String::new(); empty]);
            part.body.push(line.to_owned());
        } else {
            parts.push(Part {
                line: number + 1,
                head: line.to_owned(),
                body: Vec::new(),
            });
        }
    }
    parts
}

pub(crate) fn written(parts: &[Part]) -> String {
    let mut text = String::new();
    for part in parts {
        let _ = writeln!(text, "{}", part.head);
        for line in &part.body {
            let indent = if line.is_empty() { "" } else { INDENT };
            let _ = writeln!(text, "{indent}{line}");
        }
    }
    text
}

/// True if a program said what a file has. There `...` stands for any number of lines.
pub(crate) fn matches(
    wanted: &[String],
    said: &[String],
    is_line: &dyn Fn(&str, &str) -> bool,
) -> bool {
    match wanted {
        [] => said.is_empty(),
        [dots, rest @ ..] if dots == "..." => {
            (0..=said.len()).any(|skipped| matches(rest, &said[skipped..], is_line))
        }
        [line, rest @ ..] => {
            let is_first = said.first().is_some_and(|first| is_line(line, first));
            is_first && matches(rest, &said[1..], is_line)
        }
    }
}

/// True if a line is what a file has. There `[..]` stands for any part of it.
pub(crate) fn is_line(wanted: &str, said: &str) -> bool {
    match wanted.split_once("[..]") {
        None => wanted == said,
        Some((before, after)) => said.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices()
                .any(|(at, _)| is_line(after, &rest[at..]))
                || after.is_empty()
        }),
    }
}

#[test]
fn a_file_is_written_as_it_was_read() {
    let text = "# A title\n\nfile a\n  one\n\n  two\n\n$ mig-mps list\n  [exit status 1]\n";
    let parts = parse(text);
    assert_eq!(written(&parts), text);
    assert_eq!(parts[2].body, ["one", "", "two"]);
    assert_eq!((parts[4].line, parts[4].body.len()), (8, 1));
}

#[test]
fn dots_stand_for_lines_and_for_parts_of_lines() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let said = lines("a\nb 5 c\nd");
    for wanted in [
        "a\nb 5 c\nd",
        "...",
        "a\n...\nd",
        "a\nb [..]\nd",
        "a\n[..] c\nd",
        "a\nb 5 c\n...\nd",
    ] {
        assert!(matches(&lines(wanted), &said, &is_line), "{wanted}");
    }
    for wanted in ["a\nd", "...\nb", "a\nb [..] d\nd", "a\n..."] {
        assert_eq!(
            matches(&lines(wanted), &said, &is_line),
            wanted == "a\n...",
            "{wanted}"
        );
    }
}
