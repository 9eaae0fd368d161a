//! Lines of control.log and server.log: who wrote them when, and what they mean.
//!
//! The wording differs from driver to driver, so nothing is decided by a line: they are shown, some with
//! an explanation. What is not known is shown as it is.

mod diagnosis;
mod follow;
mod meaning;
mod read;
mod rotate;

use jiff::civil::DateTime;

pub(super) use diagnosis::diagnose;
pub use follow::{Follower, Woken};
pub use meaning::{Kind, Meaning};
pub use read::{LogDir, LogFile, Past};
pub use rotate::{LOG_LIMIT, rotate_logs};

/// One line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// When it was written, in the clock of the machine; a line without a head has that of the line
    /// before it.
    pub at: Option<DateTime>,
    /// The head as it stands in the log, `[2026-11-20 17:34:04.858 Control   447]`; `None` for a line
    /// that goes on from the one before, or whose form is not known.
    pub head: Option<String>,
    /// `Control`, `Server`, `Client`, `Other` and so on.
    pub tag: Option<String>,
    /// What it says; the whole line where there is no head.
    pub text: String,
}

impl LogLine {
    /// Takes a line apart (form: MPS guide, "Appendix: Logging"; recorded on drivers 550 to 595).
    pub fn parse(line: &str) -> Self {
        Self::with_head(line).unwrap_or_else(|| Self {
            at: None,
            head: None,
            tag: None,
            text: line.to_owned(),
        })
    }

    fn with_head(line: &str) -> Option<Self> {
        const TIME: usize = "2026-11-20 17:34:04.858".len();
        let (head, text) = line.strip_prefix('[')?.split_once(']')?;
        let (time, writer) = (head.get(..TIME)?, head.get(TIME..)?);
        let (tag, pid) = writer.trim().rsplit_once(char::is_whitespace)?;
        pid.parse::<u32>().ok()?;
        Some(Self {
            at: Some(time.parse().ok()?),
            head: Some(format!("[{head}]")),
            tag: Some(tag.trim().to_owned()),
            text: text.strip_prefix(' ').unwrap_or(text).to_owned(),
        })
    }

    /// What it means.
    pub fn meaning(&self) -> Meaning {
        Meaning::of(self.tag.as_deref(), &self.text)
    }
}

/// Merges two logs by time. The lines of one log keep their order, whatever their times say: a clock
/// may be set back.
pub fn merge(one: Vec<LogLine>, other: Vec<LogLine>) -> Vec<LogLine> {
    let mut merged = Vec::with_capacity(one.len() + other.len());
    let (mut one, mut other) = (one.into_iter().peekable(), other.into_iter().peekable());
    loop {
        let next = match (one.peek(), other.peek()) {
            (Some(a), Some(b)) if b.at < a.at => other.next(),
            (Some(_), _) => one.next(),
            (None, _) => other.next(),
        };
        match next {
            Some(line) => merged.push(line),
            None => return merged,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(at: &str, text: &str) -> LogLine {
        LogLine::parse(&format!("[2026-11-20 17:34:{at} Control   447] {text}"))
    }

    #[test]
    fn the_head_tells_when_and_who() {
        let parsed = line("04.858", "NEW UI");
        assert_eq!(parsed.at.unwrap().to_string(), "2026-11-20T17:34:04.858");
        assert_eq!(
            (parsed.tag.as_deref(), parsed.text.as_str()),
            (Some("Control"), "NEW UI")
        );
        let volta = "[2021-01-02 03:04:05.006 Legacy Server 31999] Volta MPS: x] y";
        let parsed = LogLine::parse(volta);
        assert_eq!(parsed.tag.as_deref(), Some("Legacy Server"));
        assert_eq!(parsed.text, "Volta MPS: x] y");
        assert_eq!(format!("{} {}", parsed.head.unwrap(), parsed.text), volta);
    }

    #[test]
    fn a_line_of_another_form_stays_as_it_is() {
        for text in [
            "",
            "[",
            "[2026-11-20",
            "[not a time, but as long 447] x",
            "[2026-11-20 17:34:04.858 Control] no pid",
            "[2026-13-40 17:34:04.858 Control 447] no day",
            "[é2026-11-20 17:34:04.85 Control 447] no boundary",
            "plain",
        ] {
            let parsed = LogLine::parse(text);
            assert_eq!((parsed.at, parsed.text.as_str()), (None, text));
        }
    }

    #[test]
    fn two_logs_are_merged_by_time_and_each_keeps_its_order() {
        let control = vec![
            line("04.000", "a"),
            line("06.000", "b"),
            line("05.000", "b, the clock was set back"),
        ];
        let server = vec![line("04.000", "x"), line("05.500", "y")];
        let texts: Vec<String> = merge(control, server)
            .into_iter()
            .map(|line| line.text)
            .collect();
        assert_eq!(texts, ["a", "x", "y", "b", "b, the clock was set back"]);
    }
}
