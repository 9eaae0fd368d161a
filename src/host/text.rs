//! Text that others chose: made safe for a terminal, short enough for a message, and compared with what they may have
//! meant.

use std::borrow::Cow;

/// The longest command line in a message, in characters. A process chooses its own command line, which must not push the
/// rest of the message out of sight.
const LONGEST_COMMAND: usize = 200;

/// Replaces all characters of foreign text that could control a terminal by question marks.
pub fn printable(text: &str) -> String {
    text.replace(steers, "?")
}

/// True for characters that control a terminal: control characters, and those that change the direction of text or are
/// invisible.
pub fn steers(c: char) -> bool {
    let is_format = matches!(
        c,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
    );
    c.is_control() || is_format
}

/// True for text that no shell interprets: a command with it can be pasted, even if a user chose it.
pub fn is_plain(text: &str) -> bool {
    let mut chars = text.chars();
    chars.all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
}

/// Shortens a command line for a message.
pub fn bounded(command: &str) -> Cow<'_, str> {
    match command.char_indices().nth(LONGEST_COMMAND) {
        None => Cow::Borrowed(command),
        Some((end, _)) => Cow::Owned(format!("{}…", &command[..end])),
    }
}

/// The word of `known` that `word` was probably meant to be.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len().max(word.len()) / 2).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_command_line_is_cut_between_two_characters() {
        let long = "é".repeat(LONGEST_COMMAND);
        assert_eq!(bounded(&long), long);
        assert_eq!(bounded(&format!("{long}é")), format!("{long}…"));
    }
}
