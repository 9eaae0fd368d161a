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
