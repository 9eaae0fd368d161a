//! `doctor`: every check with its fault and without it.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::common::{Ran, SMALL, Sim, copy_program};

mod daemons;
mod directories;
mod driver;
mod explain;
mod fix;
mod gpus;
mod render;
mod surroundings;

/// A check of a report.
#[derive(Debug)]
struct Checked(Value);

/// What `doctor --json` says.
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

impl Sim {
    #[track_caller]
    fn doctor(&self, args: &[&str]) -> Report {
        Report::of(&mut self.command(&[&["doctor", "--json"], args].concat()))
    }

    /// A path of the machine that the node seems to be.
    fn machine(&self, path: &str) -> PathBuf {
        self.node.dir().join("root").join(path)
    }

    /// Writes a file of that machine.
    fn prepare(&self, path: &str, text: &str) {
        let path = self.machine(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Runs a process of that name until it is dropped: `sleep` under another name.
    fn process(&self, name: &str) -> Running {
        self.process_with(name, &[])
    }

    /// The same with variables in its environment.
    fn process_with(&self, name: &str, variables: &[(&str, &str)]) -> Running {
        let program = self.node.dir().join(name);
        copy_program("/bin/sleep", &program);
        let mut command = Command::new(&program);
        let child = command.arg("600").envs(variables.iter().copied());
        let child = child.spawn().unwrap();
        let stat = format!("/proc/{}/stat", child.id());
        // Until it has become the program.
        let shown = format!("({})", &name[..name.len().min(15)]);
        while !fs::read_to_string(&stat).unwrap().contains(&shown) {
            std::thread::yield_now();
        }
        self.node.node().show_process(child.id());
        Running(child)
    }
}

/// A process that is killed when it is dropped.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node with MIG devices that are served.
pub(crate) fn healthy() -> Sim {
    let sim = Sim::with("a100-80gb", 2);
    sim.up(SMALL, &[]).ended(0);
    sim
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
        for args in [&[][..], &["--attach"]] {
            let mut ills = sim.doctor(args).ills();
            if in_a_unit() {
                ills.remove("daemon-cgroup");
            }
            assert_eq!(ills, BTreeSet::new(), "{:#?}", sim.doctor(args));
        }
        let ran = sim.run(&["doctor"]).ended(0);
        assert!(
            ran.stdout.contains(" ok\n") && ran.stderr.is_empty(),
            "{ran:?}"
        );
    }
}
