//! The error of a run: what failed, why, what was undone, what was not.

use std::fmt;

use super::cause::Cause;
use crate::failure::{CAUSE, ExitStatus, Failure, Problem};
use crate::host::{format_count, group_by, name_devices};

/// The error of an incomplete run.
#[derive(Debug, Default)]
pub struct ApplyError {
    /// The steps that failed.
    pub failures: Vec<FailedStep>,
    /// True if the user interrupted it.
    pub interrupted: bool,
    /// The result of the rollback.
    pub rolled_back: Box<RolledBack>,
    /// The steps that did not begin.
    pub not_begun: Vec<String>,
}

/// A step that failed.
#[derive(Debug)]
pub struct FailedStep {
    /// The attempted step.
    pub attempt: String,
    /// The reason.
    pub cause: Cause,
    /// The index of its GPU, if it is a step of one.
    pub gpu: Option<u32>,
    /// The device whose daemon did not start.
    pub device: Option<String>,
}

/// The result of a rollback.
#[derive(Debug, Default)]
pub struct RolledBack {
    /// The number of changes that were undone.
    pub undone: usize,
    /// The things that the run made and the rollback could not remove.
    pub stands: Vec<String>,
    /// The things that the run removed and the rollback could not make again.
    pub missing: Vec<String>,
    /// The number of clients that were terminated.
    pub clients: usize,
    /// True if another try may undo more: the journal stays then.
    pub cut_short: bool,
}

impl FailedStep {
    pub(super) fn new(attempt: impl Into<String>, cause: impl Into<Cause>) -> Self {
        Self {
            attempt: attempt.into(),
            cause: cause.into(),
            gpu: None,
            device: None,
        }
    }

    /// Describes it in one line.
    fn to_problem(&self) -> Problem {
        let describe = |cause: &dyn fmt::Display| {
            let text = match self.device {
                Some(_) => cause.to_string(),
                None => format!("{}: {cause}", self.attempt),
            };
            text.replace(CAUSE, ": ").replace('\n', " ")
        };
        Problem {
            gpu: self.gpu,
            device: self.device.clone(),
            what: describe(&self.cause),
            hint: self.cause.hint(),
            public_reason: self.cause.without_holders().map(|cause| describe(&cause)),
            ..Problem::default()
        }
    }
}

impl ApplyError {
    /// The error of a run that did not begin.
    pub(super) fn at_start(cause: impl Into<Cause>) -> Self {
        Self {
            failures: vec![FailedStep::new("nothing was changed", cause)],
            ..Self::default()
        }
    }

    /// Adds the rollback of one GPU.
    pub(super) fn add_rollback(&mut self, undone: RolledBack) {
        self.rolled_back.undone += undone.undone;
        self.rolled_back.stands.extend(undone.stands);
        self.rolled_back.missing.extend(undone.missing);
        self.rolled_back.clients += undone.clients;
        self.rolled_back.cut_short |= undone.cut_short;
    }

    /// Adds the outcome of a later run.
    #[must_use]
    pub fn merge_later(mut self, later: Self) -> Self {
        self.failures.extend(later.failures);
        self.not_begun.extend(later.not_begun);
        self.interrupted |= later.interrupted;
        self.add_rollback(*later.rolled_back);
        self
    }

    /// The names of the devices whose daemons did not start.
    pub fn failed_devices(&self) -> Vec<&str> {
        self.failures
            .iter()
            .filter_map(|one| one.device.as_deref())
            .collect()
    }

    /// True if it was not interrupted, and GPUs are the reason: what the others needed was done.
    pub fn is_confined_to_gpus(&self) -> bool {
        !self.interrupted && self.failures.iter().any(|failure| failure.gpu.is_some())
    }

    /// Returns what is missing since its step failed, once for each device or GPU.
    pub fn missing_parts(&self) -> Vec<Problem> {
        self.failures
            .iter()
            .filter(|one| one.gpu.is_some())
            .map(FailedStep::to_problem)
            .collect()
    }

    /// True if only a reset or a reboot is missing (exit status 3).
    pub fn is_pending(&self) -> bool {
        self.fails_only(|cause| matches!(cause, Cause::NotActive { .. }))
    }

    /// True if only processes that use a GPU are in the way (exit status 4).
    pub fn is_busy(&self) -> bool {
        self.fails_only(|cause| {
            matches!(
                cause,
                Cause::Busy { .. } | Cause::InUse { .. } | Cause::Reset { .. }
            )
        })
    }

    /// True if the user interrupted the run and nothing failed (exit status 130).
    pub fn is_interrupted(&self) -> bool {
        self.interrupted && self.failures.is_empty()
    }

    fn fails_only(&self, kind: impl Fn(&Cause) -> bool) -> bool {
        !self.failures.is_empty() && self.failures.iter().all(|failure| kind(&failure.cause))
    }

    /// Groups the failures by cause: 56 daemons that lack the same library are one message.
    fn group_by_cause(&self) -> Vec<Vec<&FailedStep>> {
        group_by(&self.failures, |one, other| {
            one.cause.without_device() == other.cause.without_device()
        })
    }
}

impl Failure for ApplyError {
    fn status(&self) -> ExitStatus {
        if self.is_interrupted() {
            ExitStatus::Interrupted
        } else if self.is_pending() {
            ExitStatus::Drift
        } else if self.is_busy() {
            ExitStatus::Refused
        } else {
            ExitStatus::Failed
        }
    }

    fn hints(&self) -> Vec<String> {
        let mut hints: Vec<String> = Vec::new();
        let again = "run the same command again to continue".to_owned();
        let unfinished =
            !self.rolled_back.stands.is_empty() || !self.rolled_back.missing.is_empty();
        let kinds = self.group_by_cause();
        let causes = kinds.iter().map(|alike| alike[0].cause.hint());
        for hint in causes.flatten() {
            if !hints.contains(&hint) {
                hints.push(hint);
            }
        }
        // A remedy may already say so, in these words.
        if unfinished && !hints.iter().any(|hint| hint.contains("command again")) {
            hints.push(again);
        }
        hints
    }
}

impl std::error::Error for ApplyError {}

/// The daemons that cannot start, with each reason once.
impl From<ApplyError> for Problem {
    fn from(error: ApplyError) -> Self {
        let kinds = error.group_by_cause();
        let lines = kinds.iter().map(|alike| {
            let names: Vec<&str> = alike
                .iter()
                .filter_map(|one| one.device.as_deref())
                .collect();
            format!(
                "cannot start the {} of {}{CAUSE}{}",
                if names.len() == 1 {
                    "daemon"
                } else {
                    "daemons"
                },
                name_devices(&names),
                alike[0].cause
            )
        });
        Self::new(
            lines.collect::<Vec<_>>().join("\n"),
            error.hints().join("; "),
        )
    }
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        for alike in self.group_by_cause() {
            lines.push(format!("{}{CAUSE}{}", alike[0].attempt, alike[0].cause));
            match &alike[1..] {
                [] => {}
                [other] => lines.push(format!("same cause: {}", other.attempt)),
                [others @ .., last] => {
                    let (count, last) = (others.len() + 1, &last.attempt);
                    lines.push(format!("same cause: {count} more, up to {last}"));
                }
            }
        }
        if self.interrupted {
            lines.push("interrupted".to_owned());
        }
        let RolledBack {
            undone,
            stands,
            missing,
            clients,
            cut_short,
        } = self.rolled_back.as_ref();
        if *undone > 0 {
            let steps = format_count(*undone, "step");
            let gone = match clients {
                0 => String::new(),
                1 => ", but 1 client was lost".to_owned(),
                _ => format!(", but {clients} clients were lost"),
            };
            lines.push(format!("earlier changes were undone ({steps}){gone}"));
        }
        for (word, things) in [
            ("not undone", stands),
            ("not restored", missing),
            ("not done", &self.not_begun),
        ] {
            lines.extend(things.iter().map(|thing| format!("{word}: {thing}")));
        }
        if *cut_short {
            lines.push(
                "rollback is incomplete; the next `mig-mps up` or `mig-mps down` will finish it"
                    .to_owned(),
            );
        }
        f.write_str(&lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::path::Path;

    use super::*;
    use crate::host::FileError;
    use crate::nvml::{Code, NvmlError};

    /// The error of a run that could not undo what it did.
    fn unfinished(cause: Cause) -> ApplyError {
        let mut error = ApplyError::at_start(cause);
        error.rolled_back.stands.push("an instance".to_owned());
        error
    }

    #[test]
    fn the_same_command_is_hinted_at_once() {
        let full = FileError::from(ErrorKind::StorageFull);
        let in_the_way = FileError::from(ErrorKind::NotADirectory);
        let out_of_memory = NvmlError::Refused {
            call: "nvmlInit_v2",
            subject: String::new(),
            code: Code(20),
        };
        let holders = Vec::new();
        let busy = Cause::Busy {
            holders,
            hidden: 0,
            stops_services: false,
        };
        let causes = [
            (Cause::NoDevice, 1),
            (busy, 1),
            (full.into(), 1),
            (out_of_memory.into(), 1),
            (Cause::Pending, 1),
            // A path is no advice.
            (in_the_way.at(Path::new("/again")).into(), 2),
            (Cause::StillClient, 2),
        ];
        for (cause, count) in causes {
            let hints = unfinished(cause).hints();
            assert_eq!(hints.len(), count, "{hints:?}");
        }
    }
}
