//! Text that others chose: made safe for a terminal, short enough for a message, and compared with what they may have
//! meant.

use std::borrow::{Borrow, Cow};

/// The longest command line in a message, in characters. A process chooses its own command line, which must not push the
/// rest of the message out of sight.
const MAX_COMMAND_CHARS: usize = 200;

/// Replaces all characters of foreign text that could control a terminal by question marks.
pub fn to_printable(text: &str) -> String {
    text.replace(is_terminal_control, "?")
}

/// True for characters that control a terminal: control characters, and those that change the direction of text or are
/// invisible.
pub fn is_terminal_control(c: char) -> bool {
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
pub fn is_shell_safe(text: &str) -> bool {
    text.chars()
        .all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
}

/// Quotes a word for a POSIX shell, if need be.
pub fn quote_for_shell(word: &str) -> String {
    if !word.is_empty() && word.chars().all(needs_no_quotes) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn needs_no_quotes(c: char) -> bool {
    c.is_ascii_alphanumeric() || "/._-=:,+@%".contains(c)
}

/// Shortens a command line for a message.
pub fn shorten_command(command: &str) -> Cow<'_, str> {
    match command.char_indices().nth(MAX_COMMAND_CHARS) {
        None => Cow::Borrowed(command),
        Some((end, _)) => Cow::Owned(format!("{}…", &command[..end])),
    }
}

/// The word of `known` that `word` was probably meant to be.
pub fn closest_match<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = word.chars().count();
    known
        .into_iter()
        .filter_map(|candidate| {
            let longer = candidate.len().max(word.len());
            // Half of a longer word that begins so may be left out.
            let most = if candidate.starts_with(word) {
                longer / 2
            } else {
                longer * 2 / 5
            };
            let most = most.max(1);
            // The distance is at least the difference in length: most of a long word is never looked at.
            if candidate.chars().count().abs_diff(length) > most {
                return None;
            }
            let distance = strsim::damerau_levenshtein(word, candidate);
            (distance <= most).then_some((distance, candidate))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `1 client`, `3 clients`
pub fn format_count(number: usize, noun: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{s}")
}

/// `a, b and c`
pub fn join_words<S: Borrow<str>>(words: &[S], conjunction: &str) -> String {
    match words {
        [before @ .., last] if !before.is_empty() => {
            format!("{} {conjunction} {}", before.join(", "), last.borrow())
        }
        _ => words.concat(),
    }
}

/// Formats numbers as ranges: `0-3,6`.
pub fn format_ranges(indices: &[u32]) -> String {
    let ranges: Vec<String> = indices
        .chunk_by(|a, b| a + 1 == *b)
        .map(|range| match range {
            [one] => one.to_string(),
            _ => format!("{}-{}", range[0], range[range.len() - 1]),
        })
        .collect();
    ranges.join(",")
}

/// Names GPUs by their indices: `GPU 4`, `GPUs 0-3,6`.
pub fn format_gpus(indices: &[u32]) -> String {
    let gpus = if indices.len() == 1 { "GPU" } else { "GPUs" };
    format!("{gpus} {}", format_ranges(indices))
}

/// Names devices: `device trainer`, `devices 0.0, 0.2`.
pub fn name_devices<S: Borrow<str>>(names: &[S]) -> String {
    let devices = if names.len() == 1 {
        "device"
    } else {
        "devices"
    };
    format!("{devices} {}", names.join(", "))
}

/// Puts items that are alike into one group, in the order of each group's first item.
pub fn group_by<T>(
    items: impl IntoIterator<Item = T>,
    alike: impl Fn(&T, &T) -> bool,
) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    for item in items {
        match groups.iter_mut().find(|group| alike(&group[0], &item)) {
            Some(group) => group.push(item),
            None => groups.push(vec![item]),
        }
    }
    groups
}

/// Returns the hash FNV-1a of a text: the same one in every version.
pub fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_command_line_is_cut_between_two_characters() {
        let long = "é".repeat(MAX_COMMAND_CHARS);
        assert_eq!(shorten_command(&long), long);
        assert_eq!(shorten_command(&format!("{long}é")), format!("{long}…"));
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(fnv1a(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a("foobar"), 0x8594_4171_f739_67e8);
    }
}
