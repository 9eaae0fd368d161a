//! Mistakes on the command line, in clap's words.

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::json::Message;

/// Describes a mistake on the command line. Of clap's paragraphs the first is the error, and the others are its hints.
pub fn usage_error(error: &Error) -> Message {
    let text = error.to_string();
    let mut paragraphs = text.trim_end().split("\n\n");
    let what = paragraphs.next().unwrap_or_default();
    let mut hints = Vec::new();
    for paragraph in paragraphs {
        if let Some(forms) = paragraph.strip_prefix("Usage: ") {
            hints.push(format!("usage: {}", forms.replace('\n', "\n      ")));
            continue;
        }
        for line in paragraph.lines() {
            let tip = line.trim_start().trim_start_matches("tip: ");
            // It is meant for programs that take words which begin with a dash.
            if tip.starts_with("to pass ") {
                continue;
            }
            let tip = tip.replace("For more information", "for more information");
            hints.push(tip.trim_end_matches('.').to_owned());
        }
    }
    if let Some(command) = other_word(error) {
        hints.insert(0, format!("did you mean mig-mps {command}?"));
    }
    let lines: Vec<&str> = what
        .trim_start_matches("error: ")
        .lines()
        .map(str::trim)
        .collect();
    let mut what = lines.join(" ");
    // With a similar value, the list of all is of no use, and a long one of little.
    if let Some(list) = what.find(" [possible values: ")
        && (error.get(ContextKind::SuggestedValue).is_some() || what.len() - list > LONG_LIST)
    {
        what.truncate(list);
    }
    Message { what, hints }
}

/// The length of a list of values that only help shows.
const LONG_LIST: usize = 200;

/// The words that other programs have for what a command does, or that a topic explains.
const OTHER_WORDS: &[(&str, &[&str])] = &[
    ("up", &["apply", "start", "create"]),
    ("down", &["stop", "delete", "destroy", "remove", "rm"]),
    ("status", &["show", "ps", "top", "info", "get"]),
    ("list", &["ls", "gpus", "devices"]),
    ("run", &["exec"]),
    ("plan", &["diff"]),
    ("check", &["validate", "lint"]),
    ("doctor --explain", &["explain"]),
    ("--version", &["version"]),
    (
        "help running",
        &[
            "docker",
            "podman",
            "container",
            "containers",
            "kubernetes",
            "k8s",
            "mpi",
        ],
    ),
];

/// Returns the command for a word of other programs that stands in place of one of ours.
fn other_word(error: &Error) -> Option<&'static str> {
    let kind = match error.kind() {
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        ErrorKind::InvalidValue => ContextKind::InvalidValue,
        _ => return None,
    };
    let Some(ContextValue::String(word)) = error.get(kind) else {
        return None;
    };
    let (command, _) = OTHER_WORDS
        .iter()
        .find(|(_, words)| words.contains(&word.as_str()))?;
    Some(command)
}
