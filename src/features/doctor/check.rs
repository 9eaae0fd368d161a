//! All checks: those of this room, and the problems and remarks of `status`.

use std::collections::BTreeMap;

use super::{daemons, directories, driver, gpus, surroundings};
use crate::host::{
    Environment, Holders, ProcessTable, Surroundings, is_plain, nearest, without_needless_sudo,
};
use crate::node::{Device, Gpu, Node, Problem, ProblemId, Served};

/// One thing that can keep MIG or MPS from working.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Its id. It never changes.
    pub id: &'static str,
    pub subject: Subject,
    /// The fault that it finds.
    pub fault: &'static str,
    /// The reason why that matters.
    pub why: &'static str,
    /// The remedy in general.
    pub remedy: &'static str,
    pub(super) judge: Judge,
}

impl Check {
    /// True if only an answer of the driver shows that all is well.
    fn needs_driver(&self) -> bool {
        let is_of_gpus = self.subject == Subject::Gpus && self.id != gpus::DEVICE_NODES;
        is_of_gpus || OF_DRIVER.contains(&self.id)
    }
}

/// The part of the node that a check is about, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Driver,
    Gpus,
    Daemons,
    Directories,
    Surroundings,
}

impl Subject {
    pub fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Gpus => "gpus",
            Self::Daemons => "daemons",
            Self::Directories => "directories",
            Self::Surroundings => "surroundings",
        }
    }
}

/// The way in which a check judges.
#[derive(Clone, Copy, Debug)]
pub(super) enum Judge {
    /// By itself. Without findings all is well.
    Own(fn(&Examined<'_>) -> Vec<Finding>),
    /// The same, by the records of daemons: unknown if a run directory cannot be read.
    Records(fn(&Examined<'_>) -> Vec<Finding>),
    /// By the problems and remarks of `status` with this id.
    Reported(ProblemId),
}

/// A verdict, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Ok,
    /// It cannot be seen.
    Unknown,
    /// It works, and may not go on to.
    Warn,
    /// It does not work.
    Fail,
}

impl Severity {
    pub const ALL: [Self; 4] = [Self::Fail, Self::Warn, Self::Unknown, Self::Ok];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// A fact that a check has found, with its verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    /// The name of the device; `None` if it is about the node.
    pub device: Option<String>,
    pub seen: String,
    /// A command to paste.
    pub command: Option<String>,
}

impl Finding {
    fn new(severity: Severity, seen: impl Into<String>) -> Self {
        Self {
            severity,
            device: None,
            seen: seen.into(),
            command: None,
        }
    }

    pub(super) fn ok(seen: impl Into<String>) -> Self {
        Self::new(Severity::Ok, seen)
    }

    pub(super) fn unknown(seen: impl Into<String>) -> Self {
        Self::new(Severity::Unknown, seen)
    }

    pub(super) fn warn(seen: impl Into<String>) -> Self {
        Self::new(Severity::Warn, seen)
    }

    pub(super) fn fail(seen: impl Into<String>) -> Self {
        Self::new(Severity::Fail, seen)
    }

    /// Says which device it is about.
    pub(super) fn on(self, device: &str) -> Self {
        let device = Some(device.to_owned());
        Self { device, ..self }
    }

    /// Adds a command to paste.
    pub(super) fn run(self, command: impl Into<String>) -> Self {
        let command = Some(without_needless_sudo(&command.into()));
        Self { command, ..self }
    }

    /// Adds a command with a path that a user may have chosen, unless a shell would interpret the path.
    pub(super) fn run_with(self, path: &str, command: impl Into<String>) -> Self {
        if is_plain(path) {
            self.run(command)
        } else {
            self
        }
    }

    pub(super) fn of_problem(problem: &Problem, severity: Severity) -> Self {
        Self {
            severity,
            device: problem.device.clone(),
            seen: problem.seen.clone(),
            command: problem.command().map(str::to_owned),
        }
    }
}

/// A check that was made.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    pub check: Check,
    pub findings: Vec<Finding>,
}

impl Diagnosis {
    /// Returns the worst verdict.
    pub fn severity(&self) -> Severity {
        let worst = self.findings.iter().map(|finding| finding.severity).max();
        worst.unwrap_or(Severity::Ok)
    }
}

/// A node under examination.
pub struct Examined<'a> {
    pub environment: &'a Environment,
    pub node: &'a Node,
    /// The devices to examine; all if none is named.
    pub devices: &'a [String],
    pub(super) surroundings: Surroundings,
    pub(super) processes: ProcessTable,
    /// The processes that have each GPU open, by its minor number.
    holders: BTreeMap<u32, Holders>,
    /// The problems and the remarks of `status`.
    pub(super) problems: Vec<Problem>,
    pub(super) remarks: Vec<Problem>,
}

impl<'a> Examined<'a> {
    /// Reads the rest of the machine.
    pub fn new(environment: &'a Environment, node: &'a Node, devices: &'a [String]) -> Self {
        let minors: Vec<u32> = node.gpus.iter().filter_map(|gpu| gpu.minor).collect();
        let holders = environment.host.holders_of(&minors).unwrap_or_default();
        Self {
            environment,
            node,
            devices,
            surroundings: Surroundings::read(&environment.host),
            processes: environment.host.processes().unwrap_or_default(),
            holders: minors.into_iter().zip(holders).collect(),
            problems: node.problems(devices),
            remarks: node.remarks(devices),
        }
    }

    fn is_wanted(&self, name: &str) -> bool {
        self.devices.is_empty() || self.devices.iter().any(|device| device == name)
    }

    /// Returns the devices with a record that are to be examined.
    pub(super) fn served(&self) -> impl Iterator<Item = &'a Served> {
        self.node
            .served()
            .filter(|served| self.is_wanted(&served.record.name))
    }

    /// Returns the devices to examine that exist.
    pub(super) fn devices(&self) -> impl Iterator<Item = &'a Device> {
        self.node
            .present()
            .filter(|device| self.is_wanted(&device.name))
    }

    /// Returns the GPUs of the devices to examine.
    pub(super) fn gpus(&self) -> impl Iterator<Item = &'a Gpu> {
        let indices: Vec<u32> = self.devices().filter_map(|device| device.gpu).collect();
        self.node
            .gpus
            .iter()
            .filter(move |gpu| self.devices.is_empty() || indices.contains(&gpu.index))
    }

    /// Returns the processes that have a GPU open; `None` if that cannot be seen.
    pub(super) fn holders(&self, gpu: &Gpu) -> Option<&Holders> {
        self.holders.get(&gpu.minor?)
    }

    /// Returns the driver's branch, such as 580.
    pub(super) fn branch(&self) -> Option<u32> {
        self.node.control_program().branch
    }

    /// True if a process with this name runs. The kernel cuts names to 15 bytes.
    pub(super) fn runs(&self, program: &str) -> bool {
        let name = &program[..program.len().min(15)];
        self.processes.iter().any(|process| process.name == name)
    }
}

/// An id or an error code, explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The id, or the number.
    pub id: String,
    pub meaning: String,
    /// The reason why it matters; of an error, its causes.
    pub why: String,
    pub remedy: String,
}

/// Returns every explanation: checks by subject, then errors.
pub fn explanations() -> Vec<Explanation> {
    let checks = checks().into_iter().map(|check| Explanation {
        id: check.id.to_owned(),
        meaning: check.fault.to_owned(),
        why: check.why.to_owned(),
        remedy: check.remedy.to_owned(),
    });
    let codes = driver::codes().filter_map(driver::explain);
    checks.chain(codes).collect()
}

/// The ids of [`explanations`] with their meanings.
pub fn ids() -> Vec<(String, String)> {
    explanations()
        .into_iter()
        .map(|one| (one.id, one.meaning))
        .collect()
}

/// Explains an id or an error code. Fails with the nearest id, if there is one.
pub fn explain(word: &str) -> Result<Explanation, Option<String>> {
    let all = explanations();
    if let Some(found) = all.iter().find(|one| one.id == word) {
        return Ok(Explanation {
            remedy: without_needless_sudo(&found.remedy),
            ..found.clone()
        });
    }
    let ids = all.iter().map(|one| one.id.as_str());
    Err(nearest(word, ids).map(str::to_owned))
}

/// Returns every check, by subject.
pub fn checks() -> Vec<Check> {
    let tables: [&[Check]; 7] = [
        driver::CHECKS,
        gpus::CHECKS,
        gpus::INSTANCE_CHECKS,
        daemons::CHECKS,
        daemons::OTHERS_CHECKS,
        directories::CHECKS,
        surroundings::CHECKS,
    ];
    let mut checks = tables.concat();
    for reported in reported_checks() {
        if !checks.iter().any(|own| own.id == reported.id) {
            checks.push(reported);
        }
    }
    checks.sort_by_key(|check| check.subject);
    checks
}

/// Checks of other subjects than GPUs that the driver must answer for.
const OF_DRIVER: [&str; 6] = [
    "clients-full",
    "memory-over-limit",
    "outside-mps",
    "pipe-too-long",
    "several-daemons",
    "too-many-clients",
];

/// Makes every check.
pub fn examine(examined: &Examined<'_>) -> Vec<Diagnosis> {
    checks()
        .into_iter()
        .map(|check| Diagnosis {
            check,
            findings: findings(examined, &check),
        })
        .collect()
}

fn findings(examined: &Examined<'_>, check: &Check) -> Vec<Finding> {
    let found = match check.judge {
        Judge::Own(judge) => judge(examined),
        Judge::Records(judge) => {
            let unseen = examined.node.unseen_daemons().map(Finding::unknown);
            judge(examined).into_iter().chain(unseen).collect()
        }
        Judge::Reported(id) => reported_findings(examined, id),
    };
    if examined.node.has_no_driver() && check.needs_driver() && found.is_empty() {
        return vec![Finding::unknown("the driver does not answer")];
    }
    found
}

/// Returns a check for each id.
pub(super) fn reported_checks() -> impl Iterator<Item = Check> {
    ProblemId::ALL.iter().map(|id| Check {
        id: id.name(),
        subject: subject(*id),
        fault: id.meaning(),
        why: id.why(),
        remedy: id.remedy(),
        judge: Judge::Reported(*id),
    })
}

fn subject(id: ProblemId) -> Subject {
    match id {
        ProblemId::DriverSilent => Subject::Driver,
        ProblemId::GpuLost | ProblemId::NoMigDevices => Subject::Gpus,
        ProblemId::RecordUnreadable => Subject::Directories,
        _ => Subject::Daemons,
    }
}

/// Returns what `status` has found: a problem is a fail, a remark a warning.
pub(super) fn reported_findings(examined: &Examined<'_>, id: ProblemId) -> Vec<Finding> {
    let mut found = Vec::new();
    for problem in examined.problems.iter().filter(|one| one.id == id) {
        found.push(Finding::of_problem(problem, Severity::Fail));
    }
    for remark in examined.remarks.iter().filter(|one| one.id == id) {
        found.push(Finding::of_problem(remark, Severity::Warn));
    }
    for (device, why) in examined.node.unchecked(id, examined.devices) {
        found.push(Finding {
            device,
            ..Finding::unknown(why)
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::node::ProblemId;

    #[test]
    fn everything_is_explained_in_full() {
        for one in explanations() {
            for text in [&one.meaning, &one.why, &one.remedy] {
                assert!(!text.is_empty() && !text.ends_with('.'), "{one:?}");
            }
            assert_eq!(explain(&one.id).unwrap().meaning, one.meaning);
        }
        assert_eq!(explain("daemon-ded"), Err(Some("daemon-dead".to_owned())));
        assert!(
            explain("805")
                .unwrap()
                .meaning
                .contains("CUDA_ERROR_MPS_CONNECTION_FAILED")
        );
    }

    #[test]
    fn ids_are_unique_and_every_problem_is_a_check() {
        let checks = checks();
        let ids: BTreeSet<&str> = checks.iter().map(|check| check.id).collect();
        assert_eq!(ids.len(), checks.len());
        for id in ProblemId::ALL.iter().map(|id| id.name()).chain(OF_DRIVER) {
            assert!(ids.contains(id), "{id}");
        }
    }
}
