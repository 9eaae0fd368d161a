use std::fmt::Write as _;

use serde::Serialize;

use super::words::steers;
use crate::mps::{Kind, LogLine};

/// A line for a program.
#[derive(Serialize)]
struct JsonLine<'a> {
    /// In the machine's own time; a line without a head has that of the line before it.
    time: Option<String>,
    file: &'static str,
    tag: Option<&'a str>,
    pid: Option<u32>,
    text: &'a str,
    kind: &'static str,
    meaning: Option<&'static str>,
}

/// These lines for a program, an object each.
pub(super) fn of(lines: &[LogLine]) -> serde_json::Result<String> {
    let mut text = String::new();
    for line in lines {
        let meaning = line.meaning();
        let object = serde_json::to_string(&JsonLine {
            time: line
                .at
                .map(|at| at.strftime("%Y-%m-%dT%H:%M:%S%.3f").to_string()),
            file: line.file.name(),
            tag: line.tag.as_deref(),
            pid: line.pid,
            text: &line.text,
            kind: word(meaning.kind),
            meaning: meaning.why,
        })?;
        // What steers a terminal stands in strings alone, where it may be spelled out.
        for c in object.chars() {
            if steers(c) {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(text, "\\u{unit:04x}");
                }
            } else {
                text.push(c);
            }
        }
        text.push('\n');
    }
    Ok(text)
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Chatter => "session",
        Kind::Benign => "benign",
        Kind::Ordinary => "ordinary",
        Kind::Refusal => "refusal",
        Kind::Fault => "fault",
        Kind::Unknown => "unknown",
    }
}
