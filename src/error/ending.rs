//! The errors that end a command, each with its exit status and its hints.

use std::io;

use super::{CommandError, ExitStatus};
use crate::apply::ApplyError;
use crate::client::{NoAccess, NoRank, NoneFree, NotReady, TooMuch, UnreadableLimit};
use crate::host::{
    EnvironmentError, LimitsError, LockError, OldKernel, SlurmError, TooFewFiles, TooLittleMemory,
    UnfitForDaemons, UnitsError, file_hint,
};
use crate::integrate::{GresError, JobError};
use crate::mps::MpsError;
use crate::node::{NoSuchDevice, ObserveError};
use crate::nvml::NvmlError;
use crate::plan::Refusal;
use crate::profile::ProfileError;
use crate::render::NoConsent;

/// An error that ends a command.
trait Ending: Into<anyhow::Error> {
    fn kind(&self) -> ExitStatus {
        ExitStatus::Failed
    }

    fn hints(&self) -> Vec<String> {
        Vec::new()
    }

    fn is_chosen(&self) -> bool {
        false
    }
}

impl<E: Ending> From<E> for CommandError {
    fn from(error: E) -> Self {
        Self {
            kind: error.kind(),
            hints: error.hints(),
            is_chosen: error.is_chosen(),
            is_in_document: false,
            error: error.into(),
        }
    }
}

impl Ending for anyhow::Error {
    fn hints(&self) -> Vec<String> {
        // Of what standard output refuses.
        let error = self.downcast_ref::<io::Error>();
        error.and_then(file_hint).into_iter().collect()
    }
}

impl Ending for io::Error {
    fn hints(&self) -> Vec<String> {
        file_hint(self).into_iter().collect()
    }
}

impl Ending for LimitsError {
    fn hints(&self) -> Vec<String> {
        vec![self.hint()]
    }
}

impl Ending for TooFewFiles {
    fn hints(&self) -> Vec<String> {
        vec![Self::hint()]
    }
}

impl Ending for SlurmError {
    fn hints(&self) -> Vec<String> {
        vec!["scontrol ping shows whether Slurm's controller answers".to_owned()]
    }
}

impl Ending for GresError {
    fn hints(&self) -> Vec<String> {
        self.hint().map(str::to_owned).into_iter().collect()
    }
}

impl Ending for JobError {
    fn kind(&self) -> ExitStatus {
        ExitStatus::Usage
    }

    fn hints(&self) -> Vec<String> {
        vec![self.hint().to_owned()]
    }
}

impl Ending for ProfileError {
    fn kind(&self) -> ExitStatus {
        ExitStatus::Usage
    }

    fn hints(&self) -> Vec<String> {
        match self {
            Self::Unreadable { error, .. } => error.hints(),
            Self::At(_) => Vec::new(),
        }
    }
}

impl Ending for NoSuchDevice {
    fn kind(&self) -> ExitStatus {
        ExitStatus::Usage
    }

    fn hints(&self) -> Vec<String> {
        vec![self.hint()]
    }
}

impl Ending for TooLittleMemory {
    fn hints(&self) -> Vec<String> {
        vec![self.hint()]
    }
}

impl Ending for UnfitForDaemons {
    fn hints(&self) -> Vec<String> {
        vec![self.hint()]
    }
}

impl Ending for OldKernel {
    fn hints(&self) -> Vec<String> {
        vec![self.hint().to_owned()]
    }
}

impl Ending for ObserveError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Nvml(error) => error.hints(),
            Self::Proc(_) => vec!["mount -t proc proc /proc mounts it".to_owned()],
        }
    }
}

impl Ending for NvmlError {
    fn hints(&self) -> Vec<String> {
        self.hint().into_iter().collect()
    }
}

impl Ending for EnvironmentError {
    fn hints(&self) -> Vec<String> {
        vec![self.hint()]
    }
}

impl Ending for MpsError {
    fn hints(&self) -> Vec<String> {
        self.hint().into_iter().collect()
    }
}

impl Ending for NoAccess {
    fn hints(&self) -> Vec<String> {
        vec![self.hint()]
    }
}

impl Ending for UnitsError {
    fn hints(&self) -> Vec<String> {
        vec![self.hint()]
    }
}

impl Ending for NotReady {
    fn hints(&self) -> Vec<String> {
        vec![self.hint()]
    }
}

impl Ending for NoRank {
    fn kind(&self) -> ExitStatus {
        ExitStatus::Usage
    }

    fn hints(&self) -> Vec<String> {
        vec![self.hint().to_owned()]
    }
}

impl Ending for NoneFree {
    fn hints(&self) -> Vec<String> {
        match self.reasons.as_slice() {
            [only] => vec![only.hint()],
            _ if self.is_passing() => vec!["wait for one with --wait 5m".to_owned()],
            [] => vec!["mig-mps status shows the devices".to_owned()],
            _ => vec!["mig-mps status shows the state of each device".to_owned()],
        }
    }
}

impl Ending for UnreadableLimit {
    fn hints(&self) -> Vec<String> {
        vec![Self::hint()]
    }
}

impl Ending for TooMuch {
    fn kind(&self) -> ExitStatus {
        ExitStatus::Usage
    }

    fn hints(&self) -> Vec<String> {
        vec![self.hint()]
    }
}

impl Ending for LockError {
    fn kind(&self) -> ExitStatus {
        match self {
            Self::Busy { .. } => ExitStatus::Refused,
            Self::Unusable { .. } => ExitStatus::Failed,
        }
    }

    fn hints(&self) -> Vec<String> {
        match self {
            Self::Busy { .. } => vec!["wait until it has ended, and run this again".to_owned()],
            Self::Unusable { error, .. } => error.hints(),
        }
    }
}

impl Ending for Refusal {
    fn kind(&self) -> ExitStatus {
        match self {
            Self::Profile(_) | Self::Device(_) | Self::NotMeant(_) => ExitStatus::Usage,
            Self::Infeasible(_) => ExitStatus::Infeasible,
            Self::InTheWay(_) | Self::InUse { .. } => ExitStatus::Refused,
        }
    }

    fn hints(&self) -> Vec<String> {
        self.hint().into_iter().collect()
    }
}

impl Ending for NoConsent {
    fn kind(&self) -> ExitStatus {
        ExitStatus::Refused
    }

    fn is_chosen(&self) -> bool {
        matches!(self, Self::Declined)
    }

    fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::NobodyToAsk(_) | Self::Failed(_) => "agree beforehand with --yes",
            Self::Outgrown(_) => "see the plan above, and run it again: it is planned anew",
            Self::Declined => return Vec::new(),
        };
        vec![hint.to_owned()]
    }
}

impl Ending for ApplyError {
    fn kind(&self) -> ExitStatus {
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
        self.hints()
    }
}
