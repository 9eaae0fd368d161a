use std::borrow::Cow;
use std::time::Duration;

/// GiB with as many digits as fit a narrow column: `9.5`, `139.8`.
pub(super) fn gib(bytes: u64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "shown with one decimal")]
    let gib = bytes as f64 / f64::from(1 << 30);
    format!("{gib:.1}")
}

/// The two largest units of a duration: `45s`, `3m12s`, `2h5m`, `4d3h`.
pub(super) fn age(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match () {
        () if days > 0 => format!("{days}d{}h", hours % 24),
        () if hours > 0 => format!("{hours}h{}m", minutes % 60),
        () if minutes > 0 => format!("{minutes}m{}s", seconds % 60),
        () => format!("{seconds}s"),
    }
}

/// `1 client`, `3 clients`
pub(super) fn count(number: usize, noun: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{s}")
}

/// Text that somebody else wrote, with everything spelled out that could steer the terminal it is shown on: control
/// characters, and those that turn the direction of what follows or cannot be seen.
pub(super) fn harmless(text: &str) -> Cow<'_, str> {
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let spelled = |c: char| match c {
        c if c.is_ascii() && steers(c) => format!("\\x{:02x}", u32::from(c)),
        c if steers(c) => c.escape_unicode().to_string(),
        c => c.to_string(),
    };
    text.chars().map(spelled).collect()
}

/// Whether a character does more than stand there.
pub(super) fn steers(c: char) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(harmless("plain, é, 中"), "plain, é, 中");
        assert_eq!(
            harmless("\u{1b}[2J\r\t\u{9b}1m\u{202e}x"),
            r"\x1b[2J\x0d\x09\u{9b}1m\u{202e}x"
        );
    }

    #[test]
    fn ages_show_their_two_largest_units() {
        let shown = [5, 192, 7500, 356_400].map(|s| age(Duration::from_secs(s)));
        assert_eq!(shown, ["5s", "3m12s", "2h5m", "4d3h"]);
    }
}
