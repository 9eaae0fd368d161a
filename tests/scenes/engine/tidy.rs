//! What differs from run to run, in brackets.

use std::path::Path;
use std::sync::LazyLock;

use regex::{Captures, Regex};

/// What one scene knows of its run.
pub(crate) struct Tidy {
    /// The directory of the scene.
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
    pub(crate) fn lines(&self, text: &str, processes: &[u32]) -> Vec<String> {
        let text = self.text(text);
        let mut lines: Vec<String> = text.trim_end().lines().map(str::to_owned).collect();
        for paragraph in lines.split_mut(String::is_empty) {
            self.table(paragraph, processes);
        }
        lines
    }

    /// Puts names in the place of pids and ages in a table that has any, and makes its columns as narrow as can be: their
    /// widths differ, too.
    fn table(&self, lines: &mut [String], processes: &[u32]) {
        static GAP: LazyLock<Regex> = LazyLock::new(|| Regex::new(" {2,}").unwrap());
        static AGE: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(r"^(\d+d)?(\d+h)?(\d+m)?(\d+s)?$").unwrap());
        let is_pid = |cell: &str| cell.parse().is_ok_and(|pid| processes.contains(&pid));
        if !lines.iter().any(|line| GAP.split(line).any(is_pid)) {
            return;
        }
        for line in lines {
            let cells = GAP.split(line).map(|cell| match cell {
                pid if is_pid(pid) => self.of_pid(pid),
                age if AGE.is_match(age) && !age.is_empty() => "[TIME]",
                cell => cell,
            });
            *line = cells.collect::<Vec<_>>().join("  ");
        }
    }

    /// The name of a process.
    fn of_pid(&self, pid: &str) -> &str {
        let known = self.pids.iter().rev().find(|(_, known)| known == pid);
        known.map_or("[PID]", |(name, _)| name)
    }

    fn text(&self, text: &str) -> String {
        /// Where a pid stands.
        static PID: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(r"\b(pid|process|server|kill \S+) (\d+)\b").unwrap());
        static RULES: LazyLock<[(Regex, &str); 2]> = LazyLock::new(|| {
            [
                (r"\b(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{27}", "$1-[UUID]"),
                (r"(?m) in [0-9.]+ m?s( as |$)", " in [TIME]$1"),
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
