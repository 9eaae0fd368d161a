//! Messages that cannot be provoked on a simulated node.

use std::collections::BTreeMap;

/// A fixed piece of each such message, and why no scene shows it.
const UNPROVOKED: &[(&str, &str)] = &[];

/// What is wrong: messages that are neither provoked nor in the table, and rows of the table that are of no use.
pub(crate) fn faults(pieces: &BTreeMap<String, String>, messages: &str) -> Vec<String> {
    let excused = |piece: &str| UNPROVOKED.iter().any(|(text, _)| *text == piece);
    let missing = pieces
        .iter()
        .filter(|(piece, _)| !messages.contains(piece.as_str()) && !excused(piece))
        .map(|(piece, file)| format!("{file}: no scene provokes: {piece}\n"));
    let provoked = UNPROVOKED
        .iter()
        .filter(|(text, _)| messages.contains(text))
        .map(|(text, _)| format!("in the table, and provoked: {text}\n"));
    let unknown = UNPROVOKED
        .iter()
        .filter(|(text, _)| !pieces.contains_key(*text))
        .map(|(text, _)| format!("in the table, and in no source: {text}\n"));
    missing.chain(provoked).chain(unknown).collect()
}
