//! What differs from run to run, in brackets.

use std::path::Path;
use std::sync::LazyLock;

use regex::{Captures, Regex};

use crate::common::Ran;

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

    /// The lines that a program wrote, without those of finished steps: if it failed, to standard error, and how it
    /// ended.
    pub(crate) fn said(&self, ran: &Ran) -> Vec<String> {
        let stdout = if ran.status == 0 { &ran.stdout } else { "" };
        let all = format!("{stdout}{}", ran.stderr);
        let text = self.text(&console::strip_ansi_codes(&all));
        let mut lines: Vec<String> = text.trim_end().lines().map(str::to_owned).collect();
        if ran.status != 0 {
            lines.push(format!("[exit status {}]", ran.status));
        }
        lines
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
            let known = self.pids.iter().rev().find(|(_, pid)| *pid == found[2]);
            let name = known.map_or("[PID]", |(name, _)| name);
            format!("{} {name}", &found[1])
        });
        RULES.iter().fold(text.into_owned(), |text, (from, to)| {
            from.replace_all(&text, *to).into_owned()
        })
    }
}
