use std::collections::HashMap;

use jiff::SignedDuration;
use jiff::civil::DateTime;

use super::{Kind, LogFile, LogLine};

/// What is shown of a log: a line, or in place of many lines the control sessions that they belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A line.
    Line(LogLine),
    /// Control sessions, one after another with nothing between them.
    Sessions(Sessions),
}

/// Control sessions: with `status` asking every few seconds they are most of a control.log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sessions {
    /// When the last of them was opened.
    pub at: Option<DateTime>,
    /// The daemon's process id.
    pub pid: Option<u32>,
    /// How many they are; 0 for what is left of one that was interrupted by another line.
    pub count: usize,
    /// The commands, each once, and how often they were given.
    pub commands: Commands,
    /// Whether one of them was more than a question. Such a session stands alone.
    pub is_change: bool,
}

/// Commands in the order in which each was first given, and how often that was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commands {
    counted: Vec<(Box<str>, usize)>,
    places: HashMap<Box<str>, usize>,
}

impl Commands {
    /// Each with its count.
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

/// A session that has been open for longer is that of somebody who thinks: what happens meanwhile is shown where it
/// happened.
const BRIEF: SignedDuration = SignedDuration::from_secs(2);

/// Puts sessions together.
#[derive(Clone, Debug, Default)]
pub struct Folder {
    /// Those that have ended.
    over: Option<Sessions>,
    /// The one that goes on.
    open: Option<Sessions>,
}

impl Folder {
    /// The entries that these lines come to, after those that it was given before. The last sessions may still
    /// be missing. What stands between the lines of a brief session comes behind it; none of these lines waits for
    /// one that is still to be written.
    pub fn take(&mut self, lines: Vec<LogLine>) -> Vec<Entry> {
        let mut entries = Vec::new();
        let mut between = Vec::new();
        for line in lines {
            if !self.goes_on_at(&line) {
                self.pass(&mut between, &mut entries);
            }
            let kind = line.meaning().kind;
            let is_control = line.file == LogFile::Control;
            // What may have been the answer to a command stands behind that.
            let is_answer = is_control && matches!(kind, Kind::Refusal | Kind::Unknown);
            if is_control && kind == Kind::Chatter {
                self.add(&line, &mut entries);
                if self.open.is_none() {
                    self.pass(&mut between, &mut entries);
                }
            } else if self.goes_on_at(&line) && !is_answer {
                between.push(line);
            } else {
                self.pass(&mut between, &mut entries);
                entries.extend(self.so_far());
                entries.push(Entry::Line(line));
            }
        }
        self.pass(&mut between, &mut entries);
        entries
    }

    /// Whether the session that is open may have this line, or others behind it.
    fn goes_on_at(&self, line: &LogLine) -> bool {
        let begun = self.open.as_ref().and_then(|open| open.at);
        let is_brief = |(begun, at): (DateTime, DateTime)| at.duration_since(begun) <= BRIEF;
        begun.zip(line.at).is_some_and(is_brief) && line.text.trim() != "NEW UI"
    }

    /// Gives lines away that have waited for the end of a session.
    fn pass(&mut self, between: &mut Vec<LogLine>, entries: &mut Vec<Entry>) {
        if !between.is_empty() {
            entries.extend(self.so_far());
            entries.extend(between.drain(..).map(Entry::Line));
        }
    }

    /// The sessions that have not been given yet, with what one that is still open has come to.
    fn so_far(&mut self) -> Vec<Entry> {
        // One in which nothing has been asked yet begins with its first command.
        let mut begun = self.open.take_if(|open| open.commands.counted.is_empty());
        let entries = self.rest();
        if let Some(open) = &mut begun {
            open.at = None;
        }
        self.open = begun;
        entries
    }

    /// The sessions that have not been given yet; of one that is still open, what it has come to.
    pub fn rest(&mut self) -> Vec<Entry> {
        let mut entries = Vec::new();
        self.close(&mut entries);
        entries.extend(self.over.take().map(Entry::Sessions));
        entries
    }

    /// The same, unless a session is still open.
    pub fn rest_if_closed(&mut self) -> Vec<Entry> {
        if self.open.is_some() {
            return Vec::new();
        }
        self.rest()
    }

    fn add(&mut self, line: &LogLine, entries: &mut Vec<Entry>) {
        let begun = |count| Sessions {
            at: line.at,
            pid: line.pid,
            count,
            commands: Commands::default(),
            is_change: false,
        };
        let text = line.text.trim();
        if let Some(open) = &mut self.open {
            open.at = open.at.or(line.at);
        }
        if text == "NEW UI" {
            self.close(entries);
            self.open = Some(begun(1));
        } else if text == "UI closed" {
            self.close(entries);
        } else if let Some(command) = text.strip_prefix("Cmd:").map(str::trim) {
            let open = self.open.get_or_insert_with(|| begun(0));
            open.is_change |= !is_question(command);
            open.commands.add(command, 1);
        }
        // What it was answered, and that it was let in, goes without saying.
    }

    /// Puts the session that has been open to those before it.
    fn close(&mut self, entries: &mut Vec<Entry>) {
        let Some(mut closed) = self.open.take() else {
            return;
        };
        if closed.is_change || closed.count == 0 {
            entries.extend(self.over.take().map(Entry::Sessions));
            entries.push(Entry::Sessions(closed));
            return;
        }
        let (at, count) = (closed.at, closed.count);
        let commands = std::mem::take(&mut closed.commands);
        let over = self.over.get_or_insert_with(|| Sessions {
            count: 0,
            commands: Commands::default(),
            ..closed
        });
        over.at = at;
        over.count += count;
        for (command, times) in commands.iter() {
            over.commands.add(command, *times);
        }
    }
}

/// Whether a control command changes nothing (MPS guide, "Appendix: nvidia-cuda-mps-control").
pub(in crate::mps) fn is_question(command: &str) -> bool {
    let name = command.split_whitespace().next().unwrap_or_default();
    name.starts_with("get_") || ["", "ps", "lspart", "device_query", "help"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(texts: &[&str]) -> Vec<LogLine> {
        let line = |(at, text): (usize, &&str)| {
            let line = format!("[2026-11-20 17:34:04.{at:03} Control   447] {text}");
            LogLine::parse(LogFile::Control, &line)
        };
        texts.iter().enumerate().map(line).collect()
    }

    fn session<'a>(commands: &[&'a str]) -> Vec<&'a str> {
        let mut lines = vec!["Accepting connection...", "NEW UI"];
        lines.extend(commands);
        lines.push("UI closed");
        lines
    }

    fn shown(folder: &mut Folder, texts: &[&str]) -> Vec<String> {
        let mut entries = folder.take(lines(texts));
        entries.extend(folder.rest_if_closed());
        let show = |entry| match entry {
            Entry::Line(line) => line.text.to_string(),
            Entry::Sessions(sessions) => {
                let change = if sessions.is_change { " !" } else { "" };
                format!("{} {:?}{change}", sessions.count, sessions.commands.counted)
            }
        };
        entries.into_iter().map(show).collect()
    }

    #[test]
    fn questions_one_after_another_are_one_entry() {
        let asked = session(&["Cmd:get_server_list", "466", "Cmd: get_server_status 466"]);
        let texts = [asked.clone(), asked, vec!["Removed Shm file"]].concat();
        let shown = shown(&mut Folder::default(), &texts);
        let sessions = r#"2 [("get_server_list", 2), ("get_server_status 466", 2)]"#;
        assert_eq!(shown, [sessions, "Removed Shm file"]);
    }

    #[test]
    fn a_change_stands_alone() {
        let asked = session(&["Cmd:ps"]);
        let set = session(&["Cmd:set_default_active_thread_percentage 30"]);
        let texts = [asked.clone(), set, asked].concat();
        let shown = shown(&mut Folder::default(), &texts);
        let change = r#"1 [("set_default_active_thread_percentage 30", 1)] !"#;
        assert_eq!(shown, [r#"1 [("ps", 1)]"#, change, r#"1 [("ps", 1)]"#]);
    }

    #[test]
    fn what_is_refused_stands_behind_the_command() {
        let texts = session(&["Cmd:nosuch", "Unknown command \"nosuch\"", "Cmd:ps"]);
        let shown = shown(&mut Folder::default(), &texts);
        let (first, last) = (r#"1 [("nosuch", 1)] !"#, r#"0 [("ps", 1)]"#);
        assert_eq!(shown, [first, "Unknown command \"nosuch\"", last]);
    }

    #[test]
    fn one_session_stays_one_whatever_comes_in_between() {
        let mut folder = Folder::default();
        let texts = ["NEW UI", "Cmd:ps", "FAULT", "Cmd:ps", "UI closed"];
        let one = [r#"1 [("ps", 2)]"#, "FAULT"];
        assert_eq!(shown(&mut folder, &texts), one);
        // Written while it is followed: nothing waits for what comes next.
        let begins = ["NEW UI", "NEW SERVER 5: Ready"];
        assert_eq!(shown(&mut folder, &begins), ["NEW SERVER 5: Ready"]);
        let goes_on = ["Cmd:ps", "NEW SERVER 6: Ready"];
        let so_far = [r#"1 [("ps", 1)]"#, "NEW SERVER 6: Ready"];
        assert_eq!(shown(&mut folder, &goes_on), so_far);
        let ends = ["Cmd:lspart", "UI closed"];
        assert_eq!(shown(&mut folder, &ends), [r#"0 [("lspart", 1)]"#]);
    }

    #[test]
    fn a_session_that_is_open_waits_for_its_end() {
        let mut folder = Folder::default();
        assert!(shown(&mut folder, &["Accepting connection...", "NEW UI"]).is_empty());
        assert!(shown(&mut folder, &["Cmd:ps"]).is_empty());
        assert_eq!(shown(&mut folder, &["UI closed"]), [r#"1 [("ps", 1)]"#]);
        // The end of one whose beginning was not read.
        assert!(shown(&mut folder, &["466", "UI closed"]).is_empty());
    }
}
