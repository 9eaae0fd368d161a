//! Values that differ from run to run, in brackets.

use std::path::Path;
use std::sync::LazyLock;

use regex::{Captures, Regex};

/// The values that one scenario knows of its run.
pub(crate) struct Tidy {
    /// The directory of the scenario.
    dir: String,
    /// Processes by their names.
    pids: Vec<(String, String)>,
}

impl Tidy {
    pub(crate) fn of(dir: &Path) -> Self {
        Self {
            dir: dir.display().to_string(),
            pids: Vec::new(),
        }
    }

    /// Gives a process a name.
    pub(crate) fn name(&mut self, name: &str, pid: u32) {
        self.pids.push((format!("[{name}]"), pid.to_string()));
    }

    /// Puts the directory and pids in the place of their names.
    pub(crate) fn with_values(&self, line: &str) -> String {
        let latest = self.pids.iter().rev();
        let line = line.replace("[DIR]", &self.dir);
        latest.fold(line, |line, (name, pid)| line.replace(name, pid))
    }

    /// The lines of a text.
    pub(crate) fn lines(&self, text: &str) -> Vec<String> {
        let text = self.text(text);
        let mut lines: Vec<String> = text.trim_end().lines().map(str::to_owned).collect();
        for paragraph in lines.split_mut(String::is_empty) {
            self.table(paragraph);
        }
        lines
    }

    /// Puts names in the place of the pids and times of a table. Columns are made as wide as they are then.
    fn table(&self, lines: &mut [String]) {
        static GAP: LazyLock<Regex> = LazyLock::new(|| Regex::new(" {2,}").unwrap());
        let is_head = |line: &String| {
            GAP.split(line)
                .any(|column| ["DAEMON", "PID"].contains(&column))
        };
        let Some(head) = lines.iter().find(|line| is_head(line)).cloned() else {
            return;
        };
        let columns: Vec<&str> = GAP.split(&head).collect();
        let named = |(cell, column): (&str, &&str)| match *column {
            "PID" | "DAEMON" | "SERVER" if cell.parse::<u32>().is_ok() => self.of_pid(cell).into(),
            "SINCE" | "RUNNING" if cell.ends_with('s') => "[TIME]".into(),
            _ => cell.to_owned(),
        };
        let is_row = |line: &&mut String| GAP.split(line).count() == columns.len();
        let rows = lines.iter_mut().filter(is_row).map(|line| {
            let cells = GAP.split(line).zip(&columns).map(named).collect();
            (line, cells)
        });
        let mut rows: Vec<(&mut String, Vec<String>)> = rows.collect();
        for column in 0..columns.len() {
            let widths = rows.iter().map(|(_, cells)| cells[column].chars().count());
            let width = widths.max().unwrap_or_default();
            for (_, cells) in &mut rows {
                cells[column] = format!("{:width$}", cells[column]);
            }
        }
        for (line, cells) in rows {
            cells.join("  ").trim_end().clone_into(line);
        }
    }

    /// The name of a process.
    fn of_pid(&self, pid: &str) -> &str {
        let known = self.pids.iter().rev().find(|(_, known)| known == pid);
        known.map_or("[PID]", |(name, _)| name)
    }

    fn text(&self, text: &str) -> String {
        /// Where a pid stands.
        static PID: LazyLock<Regex> = LazyLock::new(|| {
            Regex::new(r"(\b(?:pid|process|server|kill \S+)|[$`] ?kill) (\d+)\b").unwrap()
        });
        static RULES: LazyLock<[(Regex, &str); 4]> = LazyLock::new(|| {
            [
                (r"\b(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{27}", "$1-[UUID]"),
                (r"\bJOINT-[0-9a-f]{16}\b", "JOINT-[UUID]"),
                (r"(?m) in [0-9.]+ m?s( as |$)", " in [TIME]$1"),
                (r"\b(applied|down) \w+ ago\b", "$1 [TIME] ago"),
            ]
            .map(|(from, to)| (Regex::new(from).unwrap(), to))
        });
        // The root of a simulated node is that of a machine.
        let text = text.replace(&format!("{}/node/root", self.dir), "");
        let text = text.replace(&self.dir, "[DIR]");
        let text = PID.replace_all(&text, |found: &Captures<'_>| {
            format!("{} {}", &found[1], self.of_pid(&found[2]))
        });
        RULES.iter().fold(text.into_owned(), |text, (from, to)| {
            from.replace_all(&text, *to).into_owned()
        })
    }
}
