use std::borrow::Cow;
use std::time::Duration;

use console::measure_text_width;

use crate::host::steers;

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

/// The text in lines of at most `room` characters, broken between words; a longer word stays whole.
pub(super) fn broken(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split_inclusive(' ') {
        let wide = measure_text_width(word.trim_end());
        if used > 0 && used + wide > room {
            lines.push(String::new());
            used = 0;
        }
        if let Some(line) = lines.last_mut() {
            line.push_str(word);
        }
        used += measure_text_width(word);
    }
    // A blank behind the last column would begin another line.
    lines
        .iter()
        .map(|line| line.trim_end().to_owned())
        .collect()
}

/// Text that somebody else wrote, with everything spelled out that could steer the terminal it is shown on.
pub(super) fn harmless(text: &str) -> Cow<'_, str> {
    without(text, steers)
}

/// The same of text that has lines and tabs of its own.
pub(super) fn harmless_lines(text: &str) -> Cow<'_, str> {
    without(text, |c| steers(c) && !matches!(c, '\n' | '\t'))
}

fn without(text: &str, harms: fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(harms) {
        return Cow::Borrowed(text);
    }
    let spelled = |c: char| match c {
        c if c.is_ascii() && harms(c) => format!("\\x{:02x}", u32::from(c)),
        c if harms(c) => c.escape_unicode().to_string(),
        c => c.to_string(),
    };
    text.chars().map(spelled).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_between_words_and_short_ones_are_not() {
        let broken_at = |room| broken("one two three-and-more four", room);
        assert_eq!(broken_at(27), ["one two three-and-more four"]);
        assert_eq!(broken_at(22), ["one two three-and-more", "four"]);
        assert_eq!(broken_at(20), ["one two", "three-and-more four"]);
        assert_eq!(broken_at(3), ["one", "two", "three-and-more", "four"]);
        assert_eq!(broken("", 80), [""]);
    }

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(harmless("plain, é, 中"), "plain, é, 中");
        assert_eq!(
            harmless("\u{1b}[2J\r\t\u{9b}1m\u{202e}x"),
            r"\x1b[2J\x0d\x09\u{9b}1m\u{202e}x"
        );
    }

    #[test]
    fn lines_and_tabs_may_stay() {
        assert_eq!(harmless_lines("a\n\tb"), "a\n\tb");
        assert_eq!(harmless_lines("a\r\n\u{7}"), "a\\x0d\n\\x07");
    }

    #[test]
    fn ages_show_their_two_largest_units() {
        let shown = [5, 192, 7500, 356_400].map(|s| age(Duration::from_secs(s)));
        assert_eq!(shown, ["5s", "3m12s", "2h5m", "4d3h"]);
    }
}
