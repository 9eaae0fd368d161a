use super::Examined;
use crate::host::{is_plain, without_needless_sudo};
use crate::node::{Problem, ProblemId};

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
