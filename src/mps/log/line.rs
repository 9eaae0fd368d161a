use jiff::civil::DateTime;

use super::{LogFile, Meaning, rules};

/// One line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The log that contains the line. Every client can write into server.log, so the head of a line proves nothing.
    pub file: LogFile,
    /// The local time in its head, or that of the line before it.
    pub at: Option<DateTime>,
    /// `Control`, `Server`, `Client`, `Other` and so on. `None` for the continuation of a line, or an unknown form.
    pub tag: Option<Box<str>>,
    /// The pid in its head.
    pub pid: Option<u32>,
    /// The text after the head, or the whole line without one.
    pub text: Box<str>,
}

impl LogLine {
    /// Parses a line (form: MPS guide, "Appendix: Logging"; recorded on drivers 535 to 615).
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

    /// Returns a line of control.log, written at that second.
    #[cfg(test)]
    pub(crate) fn example(second: &str, text: &str) -> Self {
        let line = format!("[2026-11-20 17:34:{second} Control   447] {text}");
        Self::parse(LogFile::Control, &line)
    }

    pub fn meaning(&self) -> Meaning {
        rules::meaning(self.tag.as_deref(), &self.text)
    }
}

/// Returns `Control` for `Control INFO`, the form of driver 615.
fn without_level(tag: &str) -> &str {
    let is_level = |word: &str| word.bytes().all(|byte| byte.is_ascii_uppercase());
    match tag.rsplit_once(char::is_whitespace) {
        Some((tag, level)) if is_level(level) => tag.trim_end(),
        _ => tag,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_has_time_and_writer() {
        let parsed = LogLine::example("04.858", "NEW UI");
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
}
