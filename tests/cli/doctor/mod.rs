//! `doctor`: every check with its fault and without it.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::Value;

use testkit::{Ran, SMALL, Sim};

mod daemons;
mod directories;
mod driver;
mod explain;
mod gpus;
mod render;
mod surroundings;

/// A check of a report.
#[derive(Debug)]
struct Checked(Value);

/// The output of `doctor --json`.
#[derive(Debug)]
struct Report(Value);

impl Report {
    #[track_caller]
    fn of(command: &mut Command) -> Self {
        let ran = Ran::of(command);
        let report: Value = serde_json::from_str(&ran.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", ran.stdout, ran.stderr));
        let wanted = if report["severity"] == "fail" { 3 } else { 0 };
        ran.ended(wanted);
        Self(report)
    }

    /// The report of a script that runs the doctor, whatever its exit status.
    #[track_caller]
    fn after_any(command: &mut Command) -> Self {
        let ran = Ran::of(command);
        let report = serde_json::from_str(&ran.stdout);
        Self(report.unwrap_or_else(|error| panic!("{error}: {}{}", ran.stdout, ran.stderr)))
    }

    #[track_caller]
    fn check(&self, id: &str) -> Checked {
        let mut checks = self.0["checks"].as_array().unwrap().iter();
        let found = checks.find(|check| check["id"] == id);
        Checked(found.unwrap_or_else(|| panic!("no check {id}")).clone())
    }

    /// The ids of the checks with a verdict other than ok.
    fn ills(&self) -> BTreeSet<String> {
        let checks = self.0["checks"].as_array().unwrap().iter();
        let ill = checks.filter(|check| check["severity"] != "ok");
        ill.map(|check| check["id"].as_str().unwrap().to_owned())
            .collect()
    }
}

impl Checked {
    /// Asserts the verdict, and that it is found on this device, or on the node, with this text; returns the command.
    #[track_caller]
    fn is(&self, severity: &str, device: Option<&str>, seen: &str) -> String {
        let check = &self.0;
        assert_eq!(check["severity"], severity, "{check:#}");
        let mut findings = check["findings"].as_array().unwrap().iter();
        let found = findings.find(|finding| {
            let text = finding["seen"].as_str().unwrap();
            finding["severity"] == severity
                && finding["device"] == serde_json::json!(device)
                && text.contains(seen)
        });
        let found = found.unwrap_or_else(|| panic!("not {seen:?} on {device:?}: {check:#}"));
        found["command"].as_str().unwrap_or_default().to_owned()
    }
}

/// `mig-mps doctor` on a node.
#[track_caller]
fn doctor(sim: &Sim, args: &[&str]) -> Report {
    Report::of(&mut sim.command(&[&["doctor", "--json"], args].concat()))
}

/// A node with MIG devices that are served.
pub(crate) fn healthy() -> Sim {
    Sim::served("a100-80gb", 2, SMALL)
}

/// True if the tests run in a login session or a service, which daemons that they start belong to.
fn in_a_unit() -> bool {
    let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    cgroup.contains(".scope") || cgroup.contains(".service")
}

#[test]
fn every_check_of_a_healthy_node_is_ok() {
    let whole = Sim::with("h200", 2);
    let profile = "[[gpu]]\nselect = { all = true }\nmig = false\n";
    whole.up(profile, &[]).ended(0);
    for sim in [healthy(), whole] {
        let report = doctor(&sim, &[]);
        let mut ills = report.ills();
        if in_a_unit() {
            ills.remove("daemon-cgroup");
        }
        assert_eq!(ills, BTreeSet::new(), "{report:#?}");
        let ran = sim.run(&["doctor"]).ended(0);
        assert_eq!(ran.stderr, "");
        if !in_a_unit() {
            let checks = report.0["checks"].as_array().unwrap().len();
            let said = format!(
                "{checks} checks: all ok\nRun `mig-mps verify` to check whether programs become clients.\n"
            );
            assert_eq!(ran.stdout, said);
        }
    }
}
