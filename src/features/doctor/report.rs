//! `doctor`: checks by subject.

use std::fmt::Write as _;

use anyhow::Result;
use console::Style;
use schemars::JsonSchema;
use serde::Serialize;

use super::check::Diagnosis;
use crate::host::{sudo_command_line, to_printable};
use crate::node::{Finding, Severity};
use crate::render;
use crate::render::findings::fold_findings;
use crate::render::format::{format_count, group_by, shorten_list, wrap_behind};
use crate::render::json::{VERSION, Version};

/// The column in which text begins behind its verdict.
const MARGIN: usize = 10;

/// The most ids of checks behind a common reason.
const MAX_LISTED_IDS: usize = 3;

/// Prints what is wrong and what is unknown, or all.
pub fn print_report(all: &[Diagnosis], is_verbose: bool, is_root: bool) -> Result<()> {
    let all: Vec<Diagnosis> = all.iter().map(fold_faults).collect();
    let shown: Vec<&Diagnosis> = all
        .iter()
        .filter(|one| is_verbose || one.worst_severity() >= Severity::Warn)
        .collect();
    let mut out = String::new();
    for of_subject in shown.chunk_by(|a, b| a.fault.subject == b.fault.subject) {
        let subject = of_subject[0].fault.subject.name();
        let _ = writeln!(out, "{}", Style::new().bold().apply_to(subject));
        for one in of_subject {
            out += &match one.worst_severity() {
                Severity::Ok => render_ok(one),
                _ => render_not_ok(one, is_verbose),
            };
        }
        out.push('\n');
    }
    if !is_verbose {
        out += &render_unknown(&all, is_root);
    }
    let _ = writeln!(
        out,
        "{}\nRun `mig-mps verify` to check whether programs become clients.",
        summary_line(&all)
    );
    render::print(&out)
}

/// Puts what is wrong with many devices in the same way into one finding.
fn fold_faults(one: &Diagnosis) -> Diagnosis {
    let (faults, others): (Vec<&Finding>, Vec<_>) = one
        .findings
        .iter()
        .partition(|finding| finding.severity >= Severity::Warn);
    let mut findings = fold_findings(faults);
    findings.extend(others.into_iter().cloned());
    Diagnosis {
        fault: one.fault,
        findings,
    }
}

/// Describes what is unknown: what has the same reason in one line, and what only root may see in one line.
fn render_unknown(all: &[Diagnosis], is_root: bool) -> String {
    let (hidden, unknown): (Vec<&Finding>, Vec<_>) = all
        .iter()
        .flat_map(|one| &one.findings)
        .filter(|finding| finding.severity == Severity::Unknown)
        .partition(|finding| finding.is_hidden && !is_root);
    let mut out = String::new();
    if !unknown.is_empty() {
        let _ = writeln!(out, "{}", Style::new().bold().apply_to("not seen"));
    }
    for alike in group_by(unknown, |a, b| a.seen == b.seen) {
        let (ids, devices) = (ids_of(&alike), devices_of(&alike));
        let mut text = to_printable(&alike[0].seen);
        if !devices.is_empty() {
            text = format!("{}: {text}", shorten_list(&devices));
        }
        text = if ids.len() <= MAX_LISTED_IDS {
            format!("{text} [{}]", ids.join(", "))
        } else {
            format!("{text}: {}", format_count(ids.len(), "check"))
        };
        out += &render_verdict(Severity::Unknown, &text);
        out += &render_remedy(alike[0]);
    }
    if !out.is_empty() {
        out.push('\n');
    }
    if !hidden.is_empty() {
        let mut what = format_count(ids_of(&hidden).len(), "check");
        let devices = devices_of(&hidden).len();
        if devices > 0 {
            what = format!("{what} on {}", format_count(devices, "device"));
        }
        let _ = writeln!(
            out,
            "not seen without root: {what}; {}",
            sudo_command_line()
        );
    }
    out
}

/// Returns the checks of these findings, each once.
fn ids_of(findings: &[&Finding]) -> Vec<&'static str> {
    let mut ids: Vec<&str> = findings.iter().map(|finding| finding.id).collect();
    ids.dedup();
    ids
}

/// Returns the devices of these findings, each once.
fn devices_of<'a>(findings: &[&'a Finding]) -> Vec<&'a str> {
    let mut devices: Vec<&str> = Vec::new();
    for device in findings
        .iter()
        .filter_map(|finding| finding.device.as_deref())
    {
        if !devices.contains(&device) {
            devices.push(device);
        }
    }
    devices
}

/// `70 checks: 1 fail (4 findings), 2 warn, 1 unknown, 66 ok`
fn summary_line(all: &[Diagnosis]) -> String {
    if all.iter().all(|one| one.worst_severity() == Severity::Ok) {
        return format!("{} checks: all ok", all.len());
    }
    let mut counts = Vec::new();
    for severity in Severity::ALL {
        let alike: Vec<_> = all
            .iter()
            .filter(|one| one.worst_severity() == severity)
            .collect();
        let lines = alike
            .iter()
            .flat_map(|one| &one.findings)
            .filter(|finding| finding.severity == severity);
        match (alike.len(), lines.count()) {
            (0, _) => {}
            // Each is a line of the report.
            (count, lines) if lines > count && severity >= Severity::Warn => {
                counts.push(format!("{count} {} ({lines} findings)", severity.name()));
            }
            (count, _) => counts.push(format!("{count} {}", severity.name())),
        }
    }
    format!("{} checks: {}", all.len(), counts.join(", "))
}

/// Describes a check that is ok, with everything that was seen.
fn render_ok(one: &Diagnosis) -> String {
    let seen: Vec<String> = one.findings.iter().map(describe_finding).collect();
    let text = match seen.as_slice() {
        [] => one.fault.id.clone(),
        seen => format!("{}: {}", one.fault.id, seen.join("; ")),
    };
    render_verdict(Severity::Ok, &text)
}

/// Describes a check that is not ok: its worse findings, the reason why a fault matters, and the remedies.
fn render_not_ok(one: &Diagnosis, is_verbose: bool) -> String {
    let mut out = String::new();
    let mut has_reason = false;
    for finding in &one.findings {
        let is_fault = finding.severity >= Severity::Warn;
        if finding.severity == Severity::Ok || !is_fault && !is_verbose {
            continue;
        }
        let text = format!("{} [{}]", describe_finding(finding), one.fault.id);
        out += &render_verdict(finding.severity, &text);
        if is_fault && !has_reason {
            has_reason = true;
            let why = format!("why: {}", one.fault.why);
            out += &wrap_behind(&" ".repeat(MARGIN), &why, render::output_width());
        }
        out += &render_remedy(finding);
    }
    out
}

/// Shows the command of a remedy, and what else the remedy says.
fn render_remedy(finding: &Finding) -> String {
    let margin = " ".repeat(MARGIN);
    let command = finding.remedy_command();
    // In one line, however long: it is there to be pasted.
    let mut out = command.map_or_else(String::new, |command| {
        format!("{margin}$ {}\n", to_printable(command))
    });
    let parts = finding.remedy.iter().flat_map(|remedy| remedy.split("; "));
    let rest: Vec<&str> = parts
        .filter(|part| command.is_none_or(|command| !part.contains(command)))
        .collect();
    if !rest.is_empty() {
        let rest = to_printable(&rest.join("; "));
        out += &wrap_behind(&margin, &rest, render::output_width());
    }
    out
}

fn render_verdict(severity: Severity, text: &str) -> String {
    let style = match severity {
        Severity::Ok => Style::new().green(),
        Severity::Unknown => Style::new().dim(),
        Severity::Warn => Style::new().yellow(),
        Severity::Fail => Style::new().red().bold(),
    };
    let word = style.apply_to(format!("{:<7}", severity.name()));
    wrap_behind(&format!("  {word} "), text, render::output_width())
}

/// `0.2: its daemon has died`
fn describe_finding(finding: &Finding) -> String {
    let seen = to_printable(&finding.seen);
    match &finding.device {
        Some(device) => format!("{device}: {seen}"),
        None => seen,
    }
}

/// The output of `mig-mps doctor --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "doctor")]
pub struct DoctorDocument {
    version: Version,
    /// The worst verdict; with `fail` the exit status is 3.
    severity: &'static str,
    checks: Vec<Checked>,
}

/// A check that was made.
#[derive(Debug, Serialize, JsonSchema)]
struct Checked {
    /// Its id, which `mig-mps explain` explains. Ids never change.
    id: &'static str,
    /// The part of the node: `driver`, `gpus`, `daemons`, `directories` or `surroundings`.
    subject: &'static str,
    /// The worst verdict: `ok`; `unknown`, if it cannot be seen; `warn`; `fail`.
    severity: &'static str,
    /// The fault that it finds.
    fault: &'static str,
    /// The reason why that matters.
    why: &'static str,
    findings: Vec<CheckedFinding>,
}

/// A fact that a check has found.
#[derive(Debug, Serialize, JsonSchema)]
struct CheckedFinding {
    /// The device's name; null if it is about the node.
    device: Option<String>,
    /// The verdict.
    severity: &'static str,
    /// The fact, as a sentence.
    seen: String,
    /// A command that shows more or is the remedy; null if there is none.
    command: Option<String>,
}

impl DoctorDocument {
    /// Describes these checks.
    pub fn from_diagnoses(all: &[Diagnosis]) -> Self {
        let worst = all.iter().map(Diagnosis::worst_severity).max();
        let checks = all.iter().map(|one| Checked {
            id: &one.fault.id,
            subject: one.fault.subject.name(),
            severity: one.worst_severity().name(),
            fault: &one.fault.meaning,
            why: &one.fault.why,
            findings: one
                .findings
                .iter()
                .map(CheckedFinding::from_finding)
                .collect(),
        });
        Self {
            version: VERSION,
            severity: worst.unwrap_or(Severity::Ok).name(),
            checks: checks.collect(),
        }
    }
}

impl CheckedFinding {
    fn from_finding(finding: &Finding) -> Self {
        Self {
            device: finding.device.clone(),
            severity: finding.severity.name(),
            seen: finding.seen.clone(),
            command: finding.remedy_command().map(str::to_owned),
        }
    }
}
