use std::borrow::Cow;

/// So much of a command line stands among words, in characters: a process calls itself what it likes, and must not push
/// what else is said out of sight.
const LONGEST_COMMAND: usize = 200;

/// Text that somebody else wrote, with a question mark for everything that could steer the terminal it is shown on.
pub fn printable(text: &str) -> String {
    text.replace(steers, "?")
}

/// Whether a character does more than stand there: control characters, and those that turn the direction of what
/// follows or cannot be seen.
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

/// A command line as it stands among words.
pub fn bounded(command: &str) -> Cow<'_, str> {
    match command.char_indices().nth(LONGEST_COMMAND) {
        None => Cow::Borrowed(command),
        Some((end, _)) => Cow::Owned(format!("{}…", &command[..end])),
    }
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
