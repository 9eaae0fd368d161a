//! Control sessions in a log, shown as one entry.

use std::collections::HashMap;

use jiff::SignedDuration;
use jiff::civil::DateTime;

use crate::mps::{LineKind, LogFile, LogLine, is_query};

/// An entry of a log as it is shown: a line, or the control sessions that stand for many lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEntry {
    Line(LogLine),
    /// Control sessions with no other line between them.
    Sessions(Sessions),
}

/// Consecutive control sessions. Regular queries by `status` make up most of a control.log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sessions {
    /// The start of the last session.
    pub at: Option<DateTime>,
    /// The pid of the daemon.
    pub pid: Option<u32>,
    /// The number of sessions; 0 for the rest of a session after another line.
    pub count: usize,
    pub commands: Commands,
    /// True if a command was not a query. Such a session is an entry of its own.
    pub is_change: bool,
}

impl Sessions {
    fn begun_by(line: &LogLine, count: usize) -> Self {
        Self {
            at: line.at,
            pid: line.pid,
            count,
            commands: Commands::default(),
            is_change: false,
        }
    }

    /// True for whole sessions of queries.
    fn only_asked(&self) -> bool {
        self.count > 0 && !self.is_change
    }
}

/// Commands with their counts, in the order of their first use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commands {
    counted: Vec<(Box<str>, usize)>,
    places: HashMap<Box<str>, usize>,
}

impl Commands {
    /// Returns each command with its count.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &(Box<str>, usize)> {
        self.counted.iter()
    }

    fn add(&mut self, command: &str, times: usize) {
        if let Some(&place) = self.places.get(command) {
            self.counted[place].1 += times;
            return;
        }
        self.places.insert(command.into(), self.counted.len());
        self.counted.push((command.into(), times));
    }
}

/// The longest brief session. Lines during a longer one, such as that of a person, are shown where they are.
const BRIEF: SignedDuration = SignedDuration::from_secs(2);

/// Groups the lines of control sessions.
#[derive(Clone, Debug, Default)]
pub struct SessionGrouper {
    /// The session that has not ended.
    open: Option<Sessions>,
}

impl SessionGrouper {
    /// Groups further lines. Those of a session that has not ended are held back, see [`Self::rest`]. Lines between
    /// those of a brief session come after it; no other line is held back.
    pub fn take(&mut self, lines: Vec<LogLine>) -> Vec<LogEntry> {
        let mut entries = Vec::new();
        let mut between = Vec::new();
        for line in lines {
            if !self.is_within_open(&line) {
                self.flush(&mut between, &mut entries);
            }
            let kind = line.meaning().kind;
            let is_control = line.file == LogFile::Control;
            if is_control && kind == LineKind::Chatter {
                self.add(&line, &mut entries);
            } else {
                between.push(line);
            }
            // A possible answer to a command comes after that command.
            let is_answer = is_control && matches!(kind, LineKind::Refusal | LineKind::Unknown);
            if is_answer || self.open.is_none() {
                self.flush(&mut between, &mut entries);
            }
        }
        self.flush(&mut between, &mut entries);
        entries
    }

    /// True if the open session may contain this line or later ones.
    fn is_within_open(&self, line: &LogLine) -> bool {
        let start = self.open.as_ref().and_then(|open| open.at);
        let (Some(start), Some(at)) = (start, line.at) else {
            return false;
        };
        at.duration_since(start) <= BRIEF && line.text.trim() != "NEW UI"
    }

    /// Adds the lines between those of a session, after what is known of it.
    fn flush(&mut self, between: &mut Vec<LogLine>, entries: &mut Vec<LogEntry>) {
        if between.is_empty() {
            return;
        }
        match &mut self.open {
            // It starts at its first command.
            Some(open) if open.commands.counted.is_empty() => open.at = None,
            _ => self.rest(entries),
        }
        entries.extend(between.drain(..).map(LogEntry::Line));
    }

    fn add(&mut self, line: &LogLine, entries: &mut Vec<LogEntry>) {
        let text = line.text.trim();
        if let Some(open) = &mut self.open {
            open.at = open.at.or(line.at);
        }
        if text == "NEW UI" {
            self.rest(entries);
            self.open = Some(Sessions::begun_by(line, 1));
        } else if text == "UI closed" {
            self.rest(entries);
        } else if let Some(command) = text.strip_prefix("Cmd:").map(str::trim) {
            let open = self.open.get_or_insert_with(|| Sessions::begun_by(line, 0));
            open.is_change |= !is_query(command);
            open.commands.add(command, 1);
        }
        // Answers and the acceptance of a connection are not shown.
    }

    /// Adds the open session: to the sessions before it if they and it only asked.
    pub fn rest(&mut self, entries: &mut Vec<LogEntry>) {
        let Some(open) = self.open.take() else {
            return;
        };
        match entries.last_mut() {
            Some(LogEntry::Sessions(before)) if before.only_asked() && open.only_asked() => {
                before.at = open.at;
                before.count += open.count;
                for (command, times) in open.commands.iter() {
                    before.commands.add(command, *times);
                }
            }
            _ => entries.push(LogEntry::Sessions(open)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(texts: &[&str]) -> Vec<LogLine> {
        let line = |(at, text): (usize, &&str)| LogLine::example(&format!("04.{at:03}"), text);
        texts.iter().enumerate().map(line).collect()
    }

    fn session<'a>(commands: &[&'a str]) -> Vec<&'a str> {
        let mut lines = vec!["Accepting connection...", "NEW UI"];
        lines.extend(commands);
        lines.push("UI closed");
        lines
    }

    fn shown(grouper: &mut SessionGrouper, texts: &[&str]) -> Vec<String> {
        let entries = grouper.take(lines(texts));
        let show = |entry| match entry {
            LogEntry::Line(line) => line.text.to_string(),
            LogEntry::Sessions(sessions) => {
                let change = if sessions.is_change { " !" } else { "" };
                format!("{} {:?}{change}", sessions.count, sessions.commands.counted)
            }
        };
        entries.into_iter().map(show).collect()
    }

    #[test]
    fn consecutive_queries_are_one_entry() {
        let asked = session(&["Cmd:get_server_list", "466", "Cmd: get_server_status 466"]);
        let texts = [asked.clone(), asked, vec!["Removed Shm file"]].concat();
        let shown = shown(&mut SessionGrouper::default(), &texts);
        let sessions = r#"2 [("get_server_list", 2), ("get_server_status 466", 2)]"#;
        assert_eq!(shown, [sessions, "Removed Shm file"]);
    }

    #[test]
    fn a_change_is_an_entry_of_its_own() {
        let asked = session(&["Cmd:ps"]);
        let set = session(&["Cmd:set_default_active_thread_percentage 30"]);
        let texts = [asked.clone(), set, asked].concat();
        let shown = shown(&mut SessionGrouper::default(), &texts);
        let change = r#"1 [("set_default_active_thread_percentage 30", 1)] !"#;
        assert_eq!(shown, [r#"1 [("ps", 1)]"#, change, r#"1 [("ps", 1)]"#]);
    }

    #[test]
    fn a_refusal_comes_after_its_command() {
        let texts = session(&["Cmd:nosuch", "Unknown command \"nosuch\"", "Cmd:ps"]);
        let shown = shown(&mut SessionGrouper::default(), &texts);
        let (first, last) = (r#"1 [("nosuch", 1)] !"#, r#"0 [("ps", 1)]"#);
        assert_eq!(shown, [first, "Unknown command \"nosuch\"", last]);
    }

    #[test]
    fn a_session_stays_one_despite_lines_in_between() {
        let mut grouper = SessionGrouper::default();
        let texts = ["NEW UI", "Cmd:ps", "FAULT", "Cmd:ps", "UI closed"];
        let one = [r#"1 [("ps", 2)]"#, "FAULT"];
        assert_eq!(shown(&mut grouper, &texts), one);
        // While the log is followed, no line waits for a later one.
        let begins = ["NEW UI", "NEW SERVER 5: Ready"];
        assert_eq!(shown(&mut grouper, &begins), ["NEW SERVER 5: Ready"]);
        let goes_on = ["Cmd:ps", "NEW SERVER 6: Ready"];
        let so_far = [r#"1 [("ps", 1)]"#, "NEW SERVER 6: Ready"];
        assert_eq!(shown(&mut grouper, &goes_on), so_far);
        let ends = ["Cmd:lspart", "UI closed"];
        assert_eq!(shown(&mut grouper, &ends), [r#"0 [("lspart", 1)]"#]);
    }

    #[test]
    fn an_open_session_waits_for_its_end() {
        let mut grouper = SessionGrouper::default();
        assert!(shown(&mut grouper, &["Accepting connection...", "NEW UI"]).is_empty());
        assert!(shown(&mut grouper, &["Cmd:ps"]).is_empty());
        assert_eq!(shown(&mut grouper, &["UI closed"]), [r#"1 [("ps", 1)]"#]);
        // The end of a session whose start was not read.
        assert!(shown(&mut grouper, &["466", "UI closed"]).is_empty());
    }
}
