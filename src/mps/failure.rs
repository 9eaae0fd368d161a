//! Errors about a daemon, with the last lines of its logs.

use super::log::diagnose;
use super::{Daemon, Kind, LogDir, LogFile, LogLine, MpsError};

impl Daemon {
    /// Returns the last `most` bytes of a log, or nothing if it cannot be read.
    pub(super) fn log_end(&self, log: LogFile, most: u64) -> String {
        let logs = LogDir::open(&self.log);
        logs.map_or_else(|_| String::new(), |logs| logs.end_of(log, most))
    }

    /// Returns the last relevant log lines since this value was made, the server's after the daemon's.
    fn last_lines(&self) -> Vec<String> {
        let mut relevant = self.lines();
        for (file, lines) in LogFile::ALL.into_iter().zip(&mut relevant) {
            lines.retain(|line| is_relevant(file, line));
            lines.drain(..lines.len().saturating_sub(4));
        }
        relevant.concat()
    }

    /// Returns the lines of each log since this value was made.
    fn lines(&self) -> [Vec<String>; 2] {
        let logs = LogDir::open(&self.log).ok();
        let tail = |at: usize| {
            let logs = logs.as_ref();
            logs.map_or_else(Vec::new, |logs| {
                logs.tail(LogFile::ALL[at], self.marks[at], 200)
            })
        };
        [tail(0), tail(1)]
    }

    /// Returns an error about this daemon with its last log lines and their diagnosis.
    pub(super) fn failure(&self, what: impl Into<String>) -> MpsError {
        let mut what = what.into();
        let [control, server] = self.lines();
        if let Some(diagnosis) = diagnose(&control, &server) {
            what = format!("{what}: {diagnosis}");
        }
        MpsError::Failed {
            what,
            log: self.log.clone(),
            last_lines: self.last_lines(),
        }
    }
}

/// True if a log line is more than a query or harmless. Unknown lines are relevant: wording differs between drivers.
fn is_relevant(file: LogFile, line: &str) -> bool {
    let kind = LogLine::parse(file, line).meaning().kind;
    !matches!(kind, Kind::Chatter | Kind::Benign)
}
