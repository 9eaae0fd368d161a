//! Numbers, times, lists and slice maps as text.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use console::{Style, measure_text_width};
use jiff::Timestamp;
use textwrap::{Options, WordSplitter};

use crate::geometry::{Cell, ProfileName, SliceMap};
use crate::host::is_terminal_control;
pub use crate::host::{format_count, group_by};
pub use crate::settings::display_or;

/// Formats bytes as GiB with one decimal: `9.5`, `139.8`.
pub fn format_gib(bytes: u64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "shown with one decimal")]
    let gib = bytes as f64 / f64::from(1 << 30);
    format!("{gib:.1}")
}

/// Formats a number with three digits or more.
pub fn format_figure(value: f64) -> String {
    if value >= 1e15 || value > 0.0 && value < 1e-4 {
        return format!("{value:.2e}");
    }
    let decimals = match value {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        0.1.. => 3,
        _ => 4,
    };
    format!("{value:.decimals$}")
}

/// Formats the two largest units of a duration: `45s`, `3m12s`, `2h5m`, `4d3h`.
pub fn format_age(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    if days > 0 {
        format!("{days}d{}h", hours % 24)
    } else if hours > 0 {
        format!("{hours}h{}m", minutes % 60)
    } else if minutes > 0 {
        format!("{minutes}m{}s", seconds % 60)
    } else {
        format!("{seconds}s")
    }
}

/// Formats a limit of time without units that are zero: `30s`, `10m`, `1h`.
pub fn format_time_limit(limit: Duration) -> String {
    let age = format_age(limit);
    ["0s", "0m", "0h"]
        .iter()
        .filter_map(|zero| age.strip_suffix(zero))
        .find(|rest| rest.ends_with(char::is_alphabetic))
        .unwrap_or(&age)
        .to_owned()
}

/// Formats a time by its age: `2h5m ago`.
pub fn format_ago(at: Timestamp) -> String {
    let elapsed = Duration::try_from(Timestamp::now().duration_since(at));
    format!("{} ago", format_age(elapsed.unwrap_or_default()))
}

/// Formats the time that something took: `45 ms`, `1.4 s`, `3m12s`.
pub fn format_time_taken(duration: Duration) -> String {
    match duration.as_secs() {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{:.1} s", duration.as_secs_f64()),
        _ => format_age(duration),
    }
}

/// Puts two blanks before each line.
pub fn indent_lines(text: &str) -> String {
    text.lines().flat_map(|line| ["  ", line, "\n"]).collect()
}

/// A blank at which no line ends.
pub const NO_BREAK: char = '\u{a0}';

/// Makes text stay on one line where it is wrapped.
pub fn keep_together(text: &str) -> String {
    text.replace(' ', &NO_BREAK.to_string())
}

/// Wraps text between words. A longer word stays whole, and so does a command in backquotes. The first line stands behind
/// `head`, and the others behind as many blanks as `indent` has.
fn fill_lines(head: &str, text: &str, indent: usize, width: usize) -> String {
    let blanks = " ".repeat(indent);
    let options = Options::new(width)
        .initial_indent(head)
        .subsequent_indent(&blanks)
        .break_words(false)
        .word_splitter(WordSplitter::NoHyphenation);
    let mut parts: Vec<Cow<'_, str>> = text.split('`').map(Cow::Borrowed).collect();
    for command in parts.iter_mut().skip(1).step_by(2) {
        *command = Cow::Owned(keep_together(command));
    }
    textwrap::fill(&parts.join("`"), options).replace(NO_BREAK, " ")
}

/// Wraps the text between words at `room` characters. A longer word stays whole, and so does a command in backquotes.
pub fn wrap_text(text: &str, room: usize) -> Vec<String> {
    fill_lines("", text, 0, room)
        .split('\n')
        .map(str::to_owned)
        .collect()
}

/// Wraps each line that is too long; what follows its first part is indented more.
pub fn wrap_lines(text: &str, width: usize) -> String {
    let lines: Vec<String> = text
        .lines()
        .map(|line| {
            let rest = line.trim_start_matches(' ');
            let indent = line.len() - rest.len();
            fill_lines(&line[..indent], rest, indent + 2, width)
        })
        .collect();
    lines.join("\n")
}

/// Wraps text behind its head, as lines indented to where it begins. Where that leaves too little room, the text is wrapped
/// together with its head.
pub fn wrap_behind(head: &str, text: &str, width: usize) -> String {
    let indent = measure_text_width(head);
    if width < indent + MIN_TEXT_WIDTH {
        return wrap_lines(&format!("{head}{text}"), width) + "\n";
    }
    fill_lines(head, text, indent, width) + "\n"
}

/// The least width of text behind a head.
const MIN_TEXT_WIDTH: usize = 20;

/// Escapes everything in text of others that could control the terminal.
pub fn escape_text(text: &str) -> Cow<'_, str> {
    escape_where(text, is_terminal_control)
}

/// Escapes text of others, except its newlines and tabs.
pub fn escape_lines(text: &str) -> Cow<'_, str> {
    escape_where(text, |c| {
        is_terminal_control(c) && !matches!(c, '\n' | '\t')
    })
}

fn escape_where(text: &str, is_escaped: fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::new();
    for c in text.chars() {
        if !is_escaped(c) {
            escaped.push(c);
        } else if c.is_ascii() {
            let _ = write!(escaped, "\\x{:02x}", u32::from(c));
        } else {
            escaped.extend(c.escape_unicode());
        }
    }
    Cow::Owned(escaped)
}

/// Formats a list of names; of a long one, the first four names and the last.
pub fn shorten_list(names: &[&str]) -> String {
    match names {
        [first @ .., last] if first.len() > 4 => format!("{} … {last}", first[..4].join(", ")),
        _ => names.join(", "),
    }
}

/// Stands between the parts of a picture.
pub const BORDER: &str = "|";

/// A free part of a GPU.
pub const FREE: &str = ".";

/// Draws a map: a color for each size of profile.
pub fn draw_map(map: &SliceMap) -> String {
    draw_map_with(map, cell_style)
}

/// Draws a map for standard error.
pub fn draw_map_for_stderr(map: &SliceMap) -> String {
    draw_map_with(map, |cell| cell_style(cell).for_stderr())
}

fn draw_map_with(map: &SliceMap, style: impl Fn(&Cell<'_>) -> Style) -> String {
    let mut drawn = String::new();
    for cell in map.cells() {
        let _ = write!(
            drawn,
            "{BORDER}{}",
            style(&cell).apply_to(cell.padded_label(FREE))
        );
    }
    drawn.push_str(BORDER);
    drawn
}

/// Returns the color of a cell, by the number of its compute slices.
pub fn cell_style(cell: &Cell<'_>) -> Style {
    let Some(segment) = cell.segment else {
        return Style::new().dim();
    };
    let name = segment.label.split(' ').next().unwrap_or_default();
    match name.parse::<ProfileName>().map(|name| name.slices()) {
        Ok(0 | 1) => Style::new().cyan(),
        Ok(2) => Style::new().green(),
        Ok(3) => Style::new().yellow(),
        Ok(4) => Style::new().magenta(),
        Ok(_) => Style::new().blue(),
        Err(_) => Style::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let shown = [86616.4, 123.4, 12.34, 1.234, 0.1234, 0.01234].map(format_figure);
        assert_eq!(shown, ["86616", "123", "12.3", "1.23", "0.123", "0.0123"]);
    }

    #[test]
    fn long_lines_are_wrapped_between_words_and_short_ones_are_not() {
        let wrapped_at = |room| wrap_text("one two three-and-more four", room);
        assert_eq!(wrapped_at(27), ["one two three-and-more four"]);
        assert_eq!(wrapped_at(22), ["one two three-and-more", "four"]);
        assert_eq!(wrapped_at(20), ["one two", "three-and-more four"]);
        assert_eq!(wrapped_at(3), ["one", "two", "three-and-more", "four"]);
        assert_eq!(wrap_text("", 80), [""]);
        let quoted = wrap_text("run `mig-mps up x.toml` and go on", 12);
        assert_eq!(quoted, ["run", "`mig-mps up x.toml`", "and go on"]);
        let items = wrap_text(&format!("a {} b", keep_together("2 × 1g")), 6);
        assert_eq!(items, ["a", "2 × 1g", "b"]);
        assert_eq!(
            wrap_lines("  one two\n\nthree four", 8),
            "  one\n    two\n\nthree\n  four"
        );
        assert_eq!(wrap_lines("  one two", 9), "  one two");
    }

    #[test]
    fn lines_behind_a_head_are_indented_and_with_little_room_less() {
        let text = "starts daemons that died and restarts others";
        assert_eq!(
            wrap_behind("  heal  ", text, 36),
            "  heal  starts daemons that died and\n        restarts others\n"
        );
        assert_eq!(
            wrap_behind("  heal  ", text, 27),
            "  heal  starts daemons that\n    died and restarts\n    others\n"
        );
    }

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(escape_text("plain, é, 中"), "plain, é, 中");
        assert_eq!(
            escape_text("\u{1b}[2J\r\t\u{9b}1m\u{202e}x"),
            r"\x1b[2J\x0d\x09\u{9b}1m\u{202e}x"
        );
    }

    #[test]
    fn lines_and_tabs_may_stay() {
        assert_eq!(escape_lines("a\n\tb"), "a\n\tb");
        assert_eq!(escape_lines("a\r\n\u{7}"), "a\\x0d\n\\x07");
    }

    #[test]
    fn limits_have_no_zeros() {
        let shown =
            [10, 100, 600, 4200, 3600, 86_400].map(|s| format_time_limit(Duration::from_secs(s)));
        assert_eq!(shown, ["10s", "1m40s", "10m", "1h10m", "1h", "1d"]);
    }

    #[test]
    fn ages_show_their_two_largest_units() {
        let shown = [5, 192, 7500, 356_400].map(|s| format_age(Duration::from_secs(s)));
        assert_eq!(shown, ["5s", "3m12s", "2h5m", "4d3h"]);
    }
}
