use schemars::JsonSchema;
use serde::Serialize;

use super::{VERSION, Version};
use crate::doctor::{Diagnosis, Finding, Severity};

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
#[schemars(rename = "checked")]
struct Checked {
    /// Its id, which `mig-mps doctor --explain` explains. Ids never change.
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
#[schemars(rename = "finding")]
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
    pub fn of(all: &[Diagnosis]) -> Self {
        let worst = all.iter().map(Diagnosis::severity).max();
        Self {
            version: VERSION,
            severity: worst.unwrap_or(Severity::Ok).name(),
            checks: all.iter().map(Checked::of).collect(),
        }
    }
}

impl Checked {
    fn of(one: &Diagnosis) -> Self {
        let check = &one.check;
        Self {
            id: check.id,
            subject: check.subject.name(),
            severity: one.severity().name(),
            fault: check.fault,
            why: check.why,
            findings: one.findings.iter().map(CheckedFinding::of).collect(),
        }
    }
}

impl CheckedFinding {
    fn of(finding: &Finding) -> Self {
        Self {
            device: finding.device.clone(),
            severity: finding.severity.name(),
            seen: finding.seen.clone(),
            command: finding.command.clone(),
        }
    }
}
