//! Errors about a daemon, with the last lines of its logs.

use super::log::diagnose;
use super::{Daemon, Kind, LogDir, LogFile, LogLine, MpsError};

impl Daemon {
    /// Returns the last `most` bytes of a log, or nothing if it cannot be read.
    pub(super) fn log_end(&self, log: LogFile, most: u64) -> String {
        let logs = LogDir::open(&self.log);
        logs.map_or_else(|_| String::new(), |logs| logs.end_of(log, most))
    }

    /// Returns an error about this daemon with its last log lines since this value was made, the server's after the
    /// daemon's, and their diagnosis.
    pub(super) fn failure(&self, what: impl Into<String>) -> MpsError {
        let mut what = what.into();
        let logs = LogDir::open(&self.log).ok();
        let lines_of = |log, mark| match &logs {
            Some(logs) => logs.tail(log, mark, 200),
            None => Vec::new(),
        };
        let [control, server] = self.marks;
        let control = lines_of(LogFile::Control, control);
        let server = lines_of(LogFile::Server, server);
        if let Some(diagnosis) = diagnose(&control, &server) {
            what = format!("{what}: {diagnosis}");
        }
        let mut last_lines = last_relevant(LogFile::Control, control);
        last_lines.extend(last_relevant(LogFile::Server, server));
        MpsError::Failed {
            what,
            log: self.log.clone(),
            last_lines,
        }
    }
}

/// Returns the last lines of a log that are more than a query or harmless. Unknown lines are relevant: wording differs
/// between drivers.
fn last_relevant(file: LogFile, mut lines: Vec<String>) -> Vec<String> {
    lines.retain(|line| {
        let kind = LogLine::parse(file, line).meaning().kind;
        !matches!(kind, Kind::Chatter | Kind::Benign)
    });
    lines.split_off(lines.len().saturating_sub(4))
}
