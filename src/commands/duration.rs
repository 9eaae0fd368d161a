//! Durations on the command line.

use std::time::Duration;

use jiff::fmt::friendly::SpanParser;

/// Parses a duration such as `30s`, `5m` or `1h30m`; a number alone counts seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let is_number = text.chars().all(|c| c.is_ascii_digit() || c == '.');
    let unit = if is_number { "s" } else { "" };
    SpanParser::new()
        .parse_unsigned_duration(format!("{text}{unit}"))
        .map_err(|_| "expected a number of seconds, or one like 30s, 5m, 1h".to_owned())
}

/// Parses a duration in whole seconds.
pub(super) fn seconds(text: &str) -> Result<u32, String> {
    let duration = duration(text)?;
    let whole = u32::try_from(duration.as_secs()).ok();
    whole
        .filter(|_| duration.subsec_nanos() == 0)
        .ok_or_else(|| "expected whole seconds, and no more than 4294967295".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_seconds_and_units_may_be_combined() {
        for (text, wanted) in [
            ("30", 30),
            ("30s", 30),
            ("5m", 300),
            ("1h", 3600),
            ("1h30m", 5400),
            ("0", 0),
            ("4294967295", u32::MAX),
        ] {
            assert_eq!(seconds(text), Ok(wanted), "{text}");
        }
        assert_eq!(duration("0.5"), Ok(Duration::from_millis(500)));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "-5", "-5m", "5m ago", "soon", "1:30", "5 parsecs", "s"] {
            let error = seconds(text).unwrap_err();
            assert!(error.contains("30s, 5m, 1h"), "{text}: {error}");
        }
        for text in ["0.5", "4294967296", "2000000h"] {
            let error = seconds(text).unwrap_err();
            assert!(error.contains("whole seconds"), "{text}: {error}");
        }
    }
}
