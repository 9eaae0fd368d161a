//! `doctor`: checks by subject.

use std::fmt::Write as _;

use anyhow::Result;
use console::Style;

use super::format::wrapped;
use super::output;
use crate::doctor::{Diagnosis, Explanation, Finding, Severity};
use crate::host::printable;

/// The width of the verdicts, with the blanks around.
const MARGIN: usize = 10;

/// Prints the checks; of those that are ok only the ids, unless everything is wanted.
pub fn print(all: &[Diagnosis], is_verbose: bool) -> Result<()> {
    let mut report = Report {
        out: String::new(),
        room: output::width().saturating_sub(MARGIN),
    };
    let mut subject = None;
    for one in all {
        if subject.replace(one.check.subject) == Some(one.check.subject) {
            continue;
        }
        let of_it = all.iter();
        let of_it = of_it.filter(|other| other.check.subject == one.check.subject);
        report.subject(&of_it.collect::<Vec<_>>(), is_verbose);
    }
    let _ = writeln!(report.out, "\n{}", summary(all));
    output::print(&report.out)
}

/// `70 checks: 1 fail, 2 warn, 1 unknown, 66 ok`
fn summary(all: &[Diagnosis]) -> String {
    let counts = Severity::ALL.map(|severity| {
        let these = all.iter().filter(|one| one.severity() == severity);
        (these.count(), severity.name())
    });
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts
        .map(|(count, name)| format!("{count} {name}"))
        .collect();
    format!("{} checks: {}", all.len(), counts.join(", "))
}

struct Report {
    out: String,
    room: usize,
}

impl Report {
    fn subject(&mut self, checks: &[&Diagnosis], is_verbose: bool) {
        let name = checks.first().map_or("", |one| one.check.subject.name());
        let gap = if self.out.is_empty() { "" } else { "\n" };
        let _ = writeln!(self.out, "{gap}{}", Style::new().bold().apply_to(name));
        let mut well = Vec::new();
        for one in checks {
            match one.severity() {
                Severity::Ok if is_verbose => self.well(one),
                Severity::Ok => well.push(one.check.id),
                _ => self.ill(one),
            }
        }
        if !well.is_empty() {
            self.verdict(Severity::Ok, &well.join(", "));
        }
    }

    /// Adds a check that is ok, with everything that was seen.
    fn well(&mut self, one: &Diagnosis) {
        let seen: Vec<String> = one.findings.iter().map(described).collect();
        let text = match seen.as_slice() {
            [] => one.check.id.to_owned(),
            seen => format!("{}: {}", one.check.id, seen.join("; ")),
        };
        self.verdict(Severity::Ok, &text);
    }

    /// Adds a check that is not ok: its worse findings, the reason why they matter, and the commands.
    fn ill(&mut self, one: &Diagnosis) {
        let findings = one.findings.iter();
        for finding in findings.filter(|finding| finding.severity != Severity::Ok) {
            let text = format!("{} [{}]", described(finding), one.check.id);
            self.verdict(finding.severity, &text);
            if let Some(command) = &finding.command {
                // In one line, however long: it is there to be pasted.
                let _ = writeln!(self.out, "{:MARGIN$}$ {}", "", printable(command));
            }
        }
        for line in wrapped(&format!("why: {}", one.check.why), self.room) {
            let _ = writeln!(self.out, "{:MARGIN$}{line}", "");
        }
    }

    fn verdict(&mut self, severity: Severity, text: &str) {
        let style = match severity {
            Severity::Ok => Style::new().green(),
            Severity::Unknown => Style::new().dim(),
            Severity::Warn => Style::new().yellow(),
            Severity::Fail => Style::new().red().bold(),
        };
        let verdict = style.apply_to(format!("{:<7}", severity.name()));
        for (nth, line) in wrapped(text, self.room).iter().enumerate() {
            let _ = match nth {
                0 => writeln!(self.out, "  {verdict} {line}"),
                _ => writeln!(self.out, "{:MARGIN$}{line}", ""),
            };
        }
    }
}

/// `0.2: its daemon has died`
fn described(finding: &Finding) -> String {
    let seen = printable(&finding.seen);
    match &finding.device {
        Some(device) => format!("{device}: {seen}"),
        None => seen,
    }
}

/// Prints an explanation.
pub fn explain(one: &Explanation) -> Result<()> {
    let mut text = format!("{}\n", one.id);
    let parts = [
        ("meaning", &one.meaning),
        ("why", &one.why),
        ("remedy", &one.remedy),
    ];
    for (head, part) in parts {
        let room = output::width().saturating_sub(MARGIN);
        for (nth, line) in wrapped(part, room).iter().enumerate() {
            let head = if nth == 0 { head } else { "" };
            let _ = writeln!(text, "  {head:<8}{line}");
        }
    }
    output::print(&text)
}
