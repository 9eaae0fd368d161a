//! The error of a run: what failed, why, what was undone, what was not.

use std::fmt;
use std::sync::LazyLock;

use regex::Regex;
use thiserror::Error;

use crate::failure::{ExitStatus, Failure};
use crate::host::{
    EnvironmentError, Holder, LimitsError, MORE_PROCESSES, RunError, ToolError, format_count,
    group_by,
};
use crate::mps::MpsError;
use crate::nvml::{Code, MigMode, NvmlError};
use crate::plan::Obstacle;
use crate::state::Missing;

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
    pub fn missing_parts(&self) -> Vec<Missing> {
        self.failures
            .iter()
            .filter(|one| one.gpu.is_some())
            .map(|failure| {
                let FailedStep { attempt, cause, .. } = failure;
                let why = match failure.device {
                    Some(_) => cause.to_string(),
                    None => format!("{attempt}: {cause}"),
                };
                Missing {
                    gpu: failure.gpu,
                    device: failure.device.clone(),
                    why: why.replace('\n', " "),
                    hint: cause.hint(),
                }
            })
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
    fn group_by_cause(&self) -> Vec<(String, &FailedStep, Vec<&str>)> {
        let mut kinds: Vec<(String, &FailedStep, Vec<&str>)> = Vec::new();
        for failure in &self.failures {
            let kind = failure.cause.without_device();
            match kinds.iter_mut().find(|(known, ..)| *known == kind) {
                Some((.., others)) => others.push(&failure.attempt),
                None => kinds.push((kind, failure, Vec::new())),
            }
        }
        kinds
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
        let again = "run the same command again: it goes on from here".to_owned();
        let unfinished =
            !self.rolled_back.stands.is_empty() || !self.rolled_back.missing.is_empty();
        let kinds = self.group_by_cause();
        let causes = kinds.iter().map(|(_, failure, _)| failure.cause.hint());
        for hint in causes.chain([unfinished.then_some(again)]).flatten() {
            if !hints.contains(&hint) {
                hints.push(hint);
            }
        }
        hints
    }
}

impl std::error::Error for ApplyError {}

/// The daemons that cannot start, with each reason once.
impl From<ApplyError> for Obstacle {
    fn from(error: ApplyError) -> Self {
        let kinds = group_by(&error.failures, |one, other| {
            one.cause.without_device() == other.cause.without_device()
        });
        let lines = kinds.iter().map(|alike| {
            let names: Vec<&str> = alike
                .iter()
                .filter_map(|one| one.device.as_deref())
                .collect();
            let daemons = if names.len() == 1 {
                "daemon"
            } else {
                "daemons"
            };
            format!(
                "cannot start the {daemons} of {}: {}",
                names.join(", "),
                alike[0].cause
            )
        });
        Self {
            what: lines.collect::<Vec<_>>().join("\n"),
            hint: error.hints().join("; "),
        }
    }
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        for (_, FailedStep { attempt, cause, .. }, others) in self.group_by_cause() {
            lines.push(format!("{attempt}: {cause}"));
            match others.as_slice() {
                [] => {}
                [other] => lines.push(format!("and likewise {other}")),
                [.., last] => {
                    lines.push(format!("and likewise {} more, to {last}", others.len()));
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
                1 => ", but a client is gone".to_owned(),
                _ => format!(", but {clients} clients are gone"),
            };
            lines.push(format!(
                "what had been done before was undone ({steps}){gone}"
            ));
        }
        for (word, things) in [
            ("still there", stands),
            ("missing", missing),
            ("not done", &self.not_begun),
        ] {
            lines.extend(things.iter().map(|thing| format!("{word}: {thing}")));
        }
        if *cut_short {
            lines.push(
                "not everything was undone: the journal stays, and the next up or down goes on"
                    .to_owned(),
            );
        }
        f.write_str(&lines.join("\n"))
    }
}

/// The reason for the failure of a step.
#[derive(Debug, Error)]
pub enum Cause {
    /// An NVML call failed.
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    /// The driver reported an instance as in use until the time limit.
    #[error("{error}: {}", held_by(holders, 0))]
    InUse {
        /// The driver's last answer.
        error: NvmlError,
        /// The visible processes that use it.
        holders: Vec<Holder>,
        /// True if monitoring services are stopped where they are in the way.
        stops_services: bool,
    },
    /// The driver offers no MIG on a GPU of a model that has it.
    #[error("{error}")]
    NoMig {
        error: NvmlError,
        /// The likely cause and its remedy.
        hint: String,
    },
    /// MIG mode does not change while the GPU is in use.
    #[error("the GPU is in use: {}", held_by(holders, *hidden))]
    Busy {
        /// The visible processes that use it.
        holders: Vec<Holder>,
        /// The number of processes that could not be inspected.
        hidden: usize,
        /// True if monitoring services are stopped where they are in the way.
        stops_services: bool,
    },
    /// A command to the control daemon failed.
    #[error(transparent)]
    Mps(#[from] MpsError),
    /// A request to systemd failed.
    #[error(transparent)]
    Units(#[from] ToolError),
    /// A process holds the GPU, so it cannot be reset.
    #[error("{error}: {}", held_by(holders, 0))]
    Reset {
        /// The error of nvidia-smi.
        error: ToolError,
        /// The visible processes that hold it.
        holders: Vec<Holder>,
    },
    /// A program is missing.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The server still lists a client that it has terminated.
    #[error(
        "the server has ended its work, but still has it among its clients: its process has not noticed yet"
    )]
    StillClient,
    /// A process did not exit after a signal.
    #[error("its work is ended, but its process was sent {signal} and still runs {} s later", after.as_secs())]
    StillThere {
        /// The signal's name.
        signal: &'static str,
        /// The time waited for its exit.
        after: std::time::Duration,
    },
    /// A file could not be read or written.
    #[error("{0}")]
    File(#[from] std::io::Error),
    /// NVML accepted the MIG mode, but it is not active.
    #[error("{what}")]
    NotActive {
        what: String,
        /// True if a reset may activate it, which the user has not allowed; false if a reboot is due.
        awaits_reset: bool,
    },
    /// A start failed, and so did stopping what it had started.
    #[error("{cause}\nand what had been started could not be ended: {cleanup}")]
    CleanupFailed {
        /// The reason for the failed start.
        cause: Box<Cause>,
        /// The reason for the failed stop.
        cleanup: Box<Cause>,
    },
    /// MIG mode stays on, for this reason.
    #[error("it is left on: {0}")]
    LeftOn(&'static str),
    /// A change of the MIG mode stays pending.
    #[error("the change is pending: it becomes active with a reset of the GPU, or a reboot")]
    Pending,
    /// The device does not exist.
    #[error("the device is not there")]
    NoDevice,
    /// The GPU instance does not exist.
    #[error("its GPU instance is not there")]
    NoInstance,
    /// A user or group of the profile does not exist.
    #[error("there is no {what} \"{name}\" on this machine")]
    NoAccount { what: &'static str, name: String },
    /// A user or group has another id than the one that the daemon serves.
    #[error("the {what} {name} now has the id {is}, but the daemon serves the id {was}")]
    OtherId {
        what: &'static str,
        name: String,
        is: u32,
        was: u32,
    },
    /// The file system of a directory lets no single user in.
    #[error("{0}")]
    NoLists(std::io::Error),
    /// The system does not allow a limit.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// Another reason, which nothing depends on.
    #[error("{0}")]
    Other(String),
    /// The user interrupted the wait.
    #[error("interrupted")]
    Interrupted,
}

/// `held by pid 4711 (alice, python, session-3.scope)`
fn held_by(holders: &[Holder], hidden: usize) -> String {
    let names: Vec<String> = holders.iter().map(Holder::to_string).collect();
    let unseen = format!("{hidden} processes could not be inspected");
    match (names.as_slice(), hidden) {
        ([], 0) => "no visible process holds it".to_owned(),
        ([], _) => format!("no visible process holds it, and {unseen}"),
        (names, 0) => format!("held by {}", names.join(", ")),
        (names, _) => format!("held by {}; {unseen}", names.join(", ")),
    }
}

impl Cause {
    pub(super) fn no_account(what: &'static str, name: &str) -> Self {
        let name = name.to_owned();
        Self::NoAccount { what, name }
    }

    /// Adds the result of cleaning up after this failure.
    #[must_use]
    pub(super) fn with_cleanup(self, cleaned_up: Result<(), Self>) -> Self {
        match cleaned_up {
            Ok(()) => self,
            Err(cleanup) => Self::CleanupFailed {
                cause: Box::new(self),
                cleanup: Box::new(cleanup),
            },
        }
    }

    /// The mode reads back like this after NVML's `activationStatus`, and after a reset that did not help, or failed, for
    /// this reason.
    pub(super) fn not_active(activation: Code, mode: MigMode, after_reset: Option<&str>) -> Self {
        let pending = if mode.pending == mode.current {
            "the driver has not taken the change"
        } else {
            "the driver has recorded the change as pending"
        };
        let what = format!("MIG mode is not active: {pending}: {activation}");
        Self::NotActive {
            awaits_reset: after_reset.is_none(),
            what: match after_reset {
                Some(why) => format!("{what}; {why}"),
                None => what,
            },
        }
    }

    /// Returns the message without the UUIDs in it, which differ between equal causes.
    fn without_device(&self) -> String {
        static UUID: LazyLock<Option<Regex>> =
            LazyLock::new(|| Regex::new("(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{27}").ok());
        match UUID.as_ref() {
            Some(uuid) => uuid.replace_all(&self.to_string(), "it").into_owned(),
            None => self.to_string(),
        }
    }

    /// True if the step may have taken effect despite the error.
    pub(super) fn may_have_worked(&self) -> bool {
        match self {
            Self::Nvml(error) => error.may_have_worked(),
            _ => false,
        }
    }

    /// True if the system refuses new threads or processes.
    pub(super) fn lacks_processes(&self) -> bool {
        match self {
            Self::Nvml(NvmlError::NoThread { .. }) => true,
            Self::Mps(MpsError::Program(RunError::Start { error, .. })) | Self::File(error) => {
                error.kind() == std::io::ErrorKind::WouldBlock
            }
            Self::CleanupFailed { cause, cleanup } => {
                cause.lacks_processes() || cleanup.lacks_processes()
            }
            _ => false,
        }
    }
}

impl Failure for Cause {
    fn hint(&self) -> Option<String> {
        match self {
            cause if cause.lacks_processes() => Some(MORE_PROCESSES.to_owned()),
            Self::Nvml(error) => error.hint(),
            Self::NoMig { hint, .. } => Some(hint.clone()),
            Self::Mps(error) => error.hint(),
            Self::Units(error) | Self::Reset { error, .. } => error.hint(),
            Self::Environment(error) => error.hint(),
            Self::InUse { holders, stops_services, .. }
                if !stops_services && holders.iter().any(Holder::is_monitoring) =>
            {
                Some(Holder::release_hint(holders, false).to_owned())
            }
            Self::InUse { holders, .. } if holders.is_empty() => {
                Some(Holder::release_hint(holders, true).to_owned())
            }
            Self::InUse { .. } => Some(
                "let them end, and run this again: it goes on from here".to_owned(),
            ),
            Self::Busy { holders, stops_services, .. } => {
                Some(Holder::release_hint(holders, *stops_services).to_owned())
            }
            Self::NotActive { awaits_reset: true, .. } => Some(
                "run it again with --reset, which resets this one GPU, or reboot this machine and run it \
                 again; in a virtual machine only the reboot helps"
                    .to_owned(),
            ),
            Self::NotActive { .. } => {
                Some("reboot this machine, and run this again: it goes on".to_owned())
            }
            Self::StillClient => Some(
                "it notices with its next CUDA call; the same command with --signal ends the process".to_owned(),
            ),
            Self::StillThere { signal: "SIGTERM", .. } => Some(
                "it may be saving its work; the same command with --signal=KILL does not let it".to_owned(),
            ),
            Self::StillThere { .. } => Some(
                "it ends when its call of the kernel does; the kernel log may say which one hangs".to_owned(),
            ),
            Self::CleanupFailed { cause, .. } => cause.hint(),
            Self::File(error) => error.hint(),
            Self::NoDevice | Self::NoInstance => {
                Some("run the same command again: it plans anew".to_owned())
            }
            Self::NoAccount { what, .. } => Some(format!(
                "make the {what}, or name another one in the profile"
            )),
            Self::OtherId { .. } => Some(
                "mig-mps restart DEVICE starts a daemon that serves the new id".to_owned(),
            ),
            Self::NoLists(_) => Some(
                "set MIG_MPS_RUN_DIR and MIG_MPS_LOG_DIR to directories on tmpfs, ext4 or xfs, or serve a group with that \
                 one member"
                    .to_owned(),
            ),
            Self::Limits(error) => error.hint(),
            Self::LeftOn(_) | Self::Pending | Self::Other(_) | Self::Interrupted => None,
        }
    }
}
