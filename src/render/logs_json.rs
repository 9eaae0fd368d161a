use serde::Serialize;

use super::json::spelled;
use crate::mps::{Kind, LogLine};

/// A line of a log.
#[derive(Serialize)]
struct JsonLine<'a> {
    /// In local time; a line without a head has the time of the line before it.
    time: Option<String>,
    file: &'static str,
    tag: Option<&'a str>,
    pid: Option<u32>,
    text: &'a str,
    kind: &'static str,
    meaning: Option<&'static str>,
}

/// Formats these lines as JSON, one object each.
pub fn of(lines: &[LogLine]) -> serde_json::Result<String> {
    let mut text = String::new();
    for line in lines {
        let meaning = line.meaning();
        text.push_str(&spelled(&serde_json::to_string(&JsonLine {
            time: line
                .at
                .map(|at| at.strftime("%Y-%m-%dT%H:%M:%S%.3f").to_string()),
            file: line.file.name(),
            tag: line.tag.as_deref(),
            pid: line.pid,
            text: &line.text,
            kind: word(meaning.kind),
            meaning: meaning.why,
        })?));
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
