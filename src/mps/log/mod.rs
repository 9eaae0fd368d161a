//! Lines of control.log and server.log: who wrote them when, and what they mean.
//!
//! The wording differs from driver to driver, so nothing is decided by a line: they are shown, some with
//! an explanation. What is not known is shown as it is.

mod diagnosis;
mod follow;
mod meaning;
mod read;
mod rotate;
mod server;
mod session;

use jiff::civil::DateTime;

pub(super) use diagnosis::diagnose;
pub use follow::{Follower, Woken};
pub use meaning::{Kind, Meaning};
pub use read::{LogDir, LogFile, Past};
pub use rotate::{LOG_LIMIT, PutAside};
pub(super) use server::{logged_fault, logged_limit};
pub(super) use session::is_question;
pub use session::{Commands, Entry, Folder, Sessions};

/// One line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The log it stands in. Whatever the line says of itself, this is where it is: everybody who may reach a daemon
    /// can write into its server.log.
    pub file: LogFile,
    /// When it was written, in the clock of the machine; a line without a head has that of the line
    /// before it.
    pub at: Option<DateTime>,
    /// `Control`, `Server`, `Client`, `Other` and so on; `None` for a line that goes on from the one before, or whose
    /// form is not known.
    pub tag: Option<Box<str>>,
    /// The process id in its head.
    pub pid: Option<u32>,
    /// What it says; the whole line where there is no head.
    pub text: Box<str>,
}

impl LogLine {
    /// Takes a line apart (form: MPS guide, "Appendix: Logging"; recorded on drivers 535 to 615).
    pub fn parse(file: LogFile, line: &str) -> Self {
        Self::with_head(file, line).unwrap_or_else(|| Self {
            file,
            at: None,
            tag: None,
            pid: None,
            text: line.into(),
        })
    }

    fn with_head(file: LogFile, line: &str) -> Option<Self> {
        const TIME: usize = "2026-11-20 17:34:04.858".len();
        let (head, text) = line.strip_prefix('[')?.split_once(']')?;
        let (time, writer) = (head.get(..TIME)?, head.get(TIME..)?);
        let (tag, pid) = writer.trim().rsplit_once(char::is_whitespace)?;
        let tag = without_level(tag.trim());
        Some(Self {
            file,
            pid: Some(pid.parse().ok()?),
            at: Some(time.parse().ok()?),
            tag: Some(tag.into()),
            text: text.strip_prefix(' ').unwrap_or(text).into(),
        })
    }

    /// What it means.
    pub fn meaning(&self) -> Meaning {
        Meaning::of(self.tag.as_deref(), &self.text)
    }
}

/// `Control` of `Control INFO`, as 615 writes.
fn without_level(tag: &str) -> &str {
    let is_level = |word: &str| word.bytes().all(|byte| byte.is_ascii_uppercase());
    match tag.rsplit_once(char::is_whitespace) {
        Some((tag, level)) if is_level(level) => tag.trim_end(),
        _ => tag,
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
        let line = format!("[2026-11-20 17:34:{at} Control   447] {text}");
        LogLine::parse(LogFile::Control, &line)
    }

    #[test]
    fn the_head_tells_when_and_who() {
        let parsed = line("04.858", "NEW UI");
        assert_eq!(parsed.at.unwrap().to_string(), "2026-11-20T17:34:04.858");
        assert_eq!(
            (parsed.tag.as_deref(), parsed.pid, &*parsed.text),
            (Some("Control"), Some(447), "NEW UI")
        );
        let newer = "[2026-11-20 17:34:04.858 Control INFO   447] Activating queued UI";
        let parsed = LogLine::parse(LogFile::Control, newer);
        assert_eq!(
            (parsed.tag.as_deref(), parsed.pid, &*parsed.text),
            (Some("Control"), Some(447), "Activating queued UI")
        );
        let volta = "[2021-01-02 03:04:05.006 Legacy Server 31999] Volta MPS: x] y";
        let parsed = LogLine::parse(LogFile::Server, volta);
        assert_eq!(
            (parsed.tag.as_deref(), parsed.pid, &*parsed.text),
            (Some("Legacy Server"), Some(31999), "Volta MPS: x] y")
        );
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
            let parsed = LogLine::parse(LogFile::Server, text);
            assert_eq!((parsed.at, &*parsed.text), (None, text));
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
        let texts: Vec<Box<str>> = merge(control, server)
            .into_iter()
            .map(|line| line.text)
            .collect();
        let wanted = ["a", "x", "y", "b", "b, the clock was set back"];
        assert_eq!(texts, wanted.map(Box::from));
    }
}
