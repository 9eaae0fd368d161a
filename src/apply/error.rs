use std::fmt;

use thiserror::Error;

use crate::host::Pid;
use crate::mps::MpsError;
use crate::nvml::{Code, MigMode, NvmlError};

/// A run that did not do everything.
#[derive(Debug)]
pub struct ApplyError {
    /// The steps that failed: what was attempted, and what came back.
    pub failures: Vec<(String, Cause)>,
    /// What had been done and was undone.
    pub undone: Vec<String>,
    /// What had been done and still stands.
    pub stands: Vec<String>,
}

/// Why a step failed.
#[derive(Debug, Error)]
pub enum Cause {
    /// NVML refused.
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    /// The control daemon did not do what was asked.
    #[error(transparent)]
    Mps(#[from] MpsError),
    /// A file could not be read or written.
    #[error("{0}")]
    File(#[from] std::io::Error),
    /// MIG mode was accepted and is not active.
    #[error("{}", not_active(*activation, *mode))]
    NotActive {
        /// NVML's `activationStatus`.
        activation: Code,
        /// The mode as it reads now.
        mode: MigMode,
    },
    /// A daemon that mig-mps did not start runs in one of its directories.
    #[error("process {pid} runs a daemon of its own in {}: it is left alone", pipe.display())]
    Foreign {
        /// That daemon.
        pid: Pid,
        /// The directory.
        pipe: std::path::PathBuf,
    },
    /// Somebody who cannot be named from here holds a daemon's lock.
    #[error("a process that cannot be seen from here holds the lock in {}", pipe.display())]
    Unseen {
        /// The directory.
        pipe: std::path::PathBuf,
    },
    /// A start failed, and what it had started could not be ended.
    #[error("{cause}\nand what had been started could not be ended: {left}")]
    Left {
        /// Why the start failed.
        cause: Box<Cause>,
        /// Why the end failed.
        left: Box<Cause>,
    },
    /// MIG mode is not switched off again: on some GPUs that needs a reset.
    #[error("it is left on")]
    Stays,
    /// A device that was just made is not there.
    #[error("the device is not there after it was made")]
    NoDevice,
}

fn not_active(activation: Code, mode: MigMode) -> String {
    let pending = if mode.pending {
        "the driver has noted the change and not made it"
    } else {
        "the driver has not taken the change"
    };
    format!("MIG mode is not active: {pending}: {activation}")
}

impl Cause {
    /// This failure, with what came of cleaning up after it.
    #[must_use]
    pub(super) fn and(self, cleaned_up: Result<(), Self>) -> Self {
        match cleaned_up {
            Ok(()) => self,
            Err(left) => Self::Left {
                cause: Box::new(self),
                left: Box::new(left),
            },
        }
    }

    /// What to do about it, where there is something to say.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Nvml(error) => error.hint().map(str::to_owned),
            Self::Mps(error) => error.hint(),
            Self::NotActive { activation, .. } => Some(
                match *activation {
                    Code::IN_USE => {
                        "some process holds the GPU (nvidia-persistenced, DCGM and exporters do): stop it \
                         and run this again"
                    }
                    _ => "reboot this machine, or reset the GPU, and run this again",
                }
                .to_owned(),
            ),
            Self::Left { cause, .. } => cause.hint(),
            Self::File(_) | Self::Stays | Self::NoDevice | Self::Foreign { .. } | Self::Unseen { .. } => None,
        }
    }
}

impl ApplyError {
    /// A run that did not begin.
    pub(super) fn at_start(cause: impl Into<Cause>) -> Self {
        Self::of("nothing was changed".to_owned(), cause.into())
    }

    pub(super) fn of(attempt: String, cause: Cause) -> Self {
        Self {
            failures: vec![(attempt, cause)],
            undone: Vec::new(),
            stands: Vec::new(),
        }
    }

    /// All failures as one; `None` where there are none.
    pub(super) fn merge(errors: Vec<Self>) -> Option<Self> {
        errors.into_iter().reduce(|mut all, error| {
            all.failures.extend(error.failures);
            all.stands.extend(error.stands);
            all
        })
    }

    /// Whether all that is missing is a reset, a reboot or an idle GPU (exit status 3).
    pub fn is_pending(&self) -> bool {
        let pending = |(_, cause): &(String, Cause)| matches!(cause, Cause::NotActive { .. });
        self.failures.iter().all(pending)
    }

    /// What to do about it, each hint once.
    pub fn hints(&self) -> Vec<String> {
        let mut hints: Vec<String> = Vec::new();
        for hint in self.failures.iter().filter_map(|(_, cause)| cause.hint()) {
            if !hints.contains(&hint) {
                hints.push(hint);
            }
        }
        hints
    }
}

impl std::error::Error for ApplyError {}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines: Vec<String> = self
            .failures
            .iter()
            .map(|(attempt, cause)| format!("{attempt}: {cause}"))
            .collect();
        if !self.undone.is_empty() {
            let count = self.undone.len();
            lines.push(format!(
                "what had been done before was undone ({count} steps)"
            ));
        }
        lines.extend(
            self.stands
                .iter()
                .map(|stands| format!("still there: {stands}")),
        );
        f.write_str(&lines.join("\n"))
    }
}
