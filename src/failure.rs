//! The exit statuses of the program, the trait of errors that can end a command, and what is wrong, with its remedy.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The program's exit status. The numbers are a promise to scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    Done = 0,
    Failed = 1,
    Usage = 2,
    /// The node differs from the profile, or a reset or reboot is due.
    Drift = 3,
    /// Something runs that would be disrupted, or another change is under way.
    Refused = 4,
    Infeasible = 5,
    /// `run --wait`: the device was not free in time.
    WaitOver = 124,
    /// `run` did not start the program.
    NotRun = 125,
    /// `run` found the program, and cannot execute it, as shells have it.
    NotExecutable = 126,
    NotFound = 127,
    /// Ended by Ctrl-C, SIGTERM or SIGHUP; what had been changed was undone.
    Interrupted = 130,
}

impl ExitStatus {
    /// Every status with its meaning, for the help and the manual.
    pub const MEANINGS: [(Self, &'static str); 11] = [
        (Self::Done, "done"),
        (Self::Failed, "failed"),
        (Self::Usage, "usage error or invalid profile"),
        (
            Self::Drift,
            "the node does not match the profile, a reset or a reboot is pending, or a check found a problem (plan and status with --exit-code, heal, doctor, slurm gres --check, slurm health)",
        ),
        (
            Self::Refused,
            "refused because a program runs, another change is in progress, or a confirmation is missing; verify: a device that serves others was not checked; selftest: a GPU was refused",
        ),
        (
            Self::Infeasible,
            "the profile, or the programs of advise, need more than the GPUs offer",
        ),
        (Self::WaitOver, "run: the time limit of --wait expired"),
        (
            Self::NotRun,
            "run: the program was not started; otherwise, the exit status is that of the program",
        ),
        (
            Self::NotExecutable,
            "run, compare: the program cannot be executed",
        ),
        (Self::NotFound, "run, compare: the program was not found"),
        (Self::Interrupted, "interrupted (Ctrl-C, SIGTERM, SIGHUP)"),
    ];
}

/// An error that can end a command.
pub trait Failure: std::error::Error + Send + Sync + 'static {
    /// The exit status of a command that it ends.
    fn status(&self) -> ExitStatus {
        ExitStatus::Failed
    }

    /// Advice on what to do about it, if there is any.
    fn hint(&self) -> Option<String> {
        None
    }

    /// All advice, each piece once.
    fn hints(&self) -> Vec<String> {
        self.hint().into_iter().collect()
    }
}

/// Something that is wrong, in the way or left out: in refusals, plans, errors and records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(
    rename = "Missing",
    description = "A part of a profile that was left out so that the rest could be applied."
)]
pub struct Problem {
    /// The index of its GPU; null if it concerns no single GPU, or that is not known.
    pub gpu: Option<u32>,
    /// The device's name; null if it is the whole GPU.
    pub device: Option<String>,
    /// The reason, as a sentence.
    #[serde(rename = "why")]
    pub what: String,
    /// The remedy; null if none is known.
    pub hint: Option<String>,
    /// The index of the GPU whose reason `why` repeats; absent if it repeats none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_of_gpu: Option<u32>,
    /// The reason without processes, whose command lines are not for every user; `None` if it names none.
    #[serde(skip)]
    pub public_reason: Option<String>,
}

impl Problem {
    /// A problem with its remedy, which is empty if none is known.
    pub fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            hint: Some(hint.into()).filter(|hint| !hint.is_empty()),
            ..Self::without_hint(what)
        }
    }

    /// A problem for which no remedy is known.
    pub fn without_hint(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            ..Self::default()
        }
    }

    /// A problem that processes cause. `what` makes the sentence, with their descriptions and without.
    pub fn with_processes(
        processes: &str,
        hint: impl Into<String>,
        what: impl Fn(&str) -> String,
    ) -> Self {
        Self {
            public_reason: Some(what(OTHER_PROGRAMS)),
            ..Self::new(what(processes), hint)
        }
    }

    /// Returns these without those that say what another one says: GPUs that the same processes hold have the same reason, and a
    /// joint device may repeat the reason of one of its GPUs.
    pub fn distinct(problems: &[Self]) -> Vec<&Self> {
        let is_repeated = |one: &Self| {
            let is_of_gpu = one.gpu.is_some() && one.device.is_none();
            is_of_gpu && problems.iter().any(|other| other.reason_of_gpu == one.gpu)
        };
        let mut distinct: Vec<&Self> = Vec::new();
        for one in problems {
            let is_same = |known: &&Self| known.device == one.device && known.what == one.what;
            if !is_repeated(one) && !distinct.iter().any(is_same) {
                distinct.push(one);
            }
        }
        distinct
    }

    /// Returns what every user may read of it.
    #[must_use]
    pub fn for_everybody(&self) -> Self {
        let mut public = self.clone();
        if let Some(reason) = public.public_reason.take() {
            public.what = reason;
        }
        public
    }
}

/// Stands before each further cause of an error: one line for each.
pub const CAUSE: &str = "\n  cause: ";

/// What every user may know of the processes in a message.
pub const OTHER_PROGRAMS: &str = "other programs";

/// `device trainer: there is no user "alice" on this machine`
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(device) = &self.device {
            write!(f, "device {device}: ")?;
        }
        f.write_str(&self.what)
    }
}

impl std::error::Error for Problem {}

impl Failure for Problem {
    fn hint(&self) -> Option<String> {
        self.hint.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_another_problem_repeats_is_left_out() {
        let on_gpu = |gpu, what: &str| Problem {
            gpu: Some(gpu),
            ..Problem::without_hint(what)
        };
        let lost = on_gpu(1, "GPU 1 is lost");
        let joint = Problem {
            reason_of_gpu: Some(1),
            ..on_gpu(0, "device pair needs all its GPUs, and GPU 1 is lost")
        };
        let other = on_gpu(2, "is lost");
        let problems = [lost.clone(), joint.clone(), joint.clone(), other.clone()];
        assert_eq!(Problem::distinct(&problems), [&joint, &other]);
        // The words do not matter.
        let similar = on_gpu(3, "GPU 3 waits: is lost");
        let problems = [other, similar, lost];
        assert_eq!(Problem::distinct(&problems).len(), 3);
    }

    #[test]
    fn an_empty_hint_is_none() {
        assert_eq!(Problem::new("it fails", "").hint(), None);
    }

    #[test]
    fn only_the_caller_reads_of_processes() {
        let problem = Problem::with_processes("pid 7 (alice, train)", "end it", |holders| {
            format!("held by {holders}")
        });
        assert_eq!(problem.to_string(), "held by pid 7 (alice, train)");
        assert_eq!(
            problem.for_everybody().to_string(),
            "held by other programs"
        );
    }
}
