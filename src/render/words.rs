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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_show_their_two_largest_units() {
        let shown = [5, 192, 7500, 356_400].map(|s| age(Duration::from_secs(s)));
        assert_eq!(shown, ["5s", "3m12s", "2h5m", "4d3h"]);
    }
}
