//! How a command ends: exit statuses, and what to do about an error.

use anyhow::Error;

use crate::apply::ApplyError;
use crate::commands::check::Unfit;
use crate::commands::import::ImportError;
use crate::commands::{Declared, Ends, NotAsWanted, NotReadBack};
use crate::environment::EnvironmentError;
use crate::host::LockError;
use crate::mps::MpsError;
use crate::node::{NoSuchDevice, ObserveError};
use crate::plan::Refusal;
use crate::profile::ProfileError;
use crate::render::NoConsent;

/// The program's exit status. The numbers are a promise to scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Done = 0,
    /// It did not work.
    Failed = 1,
    /// Wrong usage or a bad profile.
    Usage = 2,
    /// Not, or not yet, as the profile says: a reset or reboot is due.
    NotYet = 3,
    /// Refused because something runs, or another change is under way.
    Refused = 4,
    /// What is asked for does not fit on the GPU.
    Infeasible = 5,
    /// Ended by Ctrl-C, SIGTERM or SIGHUP; what had been changed was undone.
    Interrupted = 130,
}

impl Status {
    /// Every status with its meaning, for help and README.
    pub const MEANINGS: [(Self, &'static str); 7] = [
        (Self::Done, "done"),
        (Self::Failed, "failed"),
        (Self::Usage, "wrong usage or bad profile"),
        (
            Self::NotYet,
            "not (yet) as the profile says: a reset or reboot is due, or --exit-code of plan or status finds something",
        ),
        (
            Self::Refused,
            "refused because something runs, or another change is under way",
        ),
        (
            Self::Infeasible,
            "the profile asks for more than fits on a GPU",
        ),
        (Self::Interrupted, "interrupted (Ctrl-C, SIGTERM, SIGHUP)"),
    ];

    /// The status an error ends the program with.
    pub fn of(error: &Error) -> Self {
        if let Some(Ends(status)) = error.downcast_ref() {
            return *status;
        }
        // Whatever kept it from being read: it is changed.
        if error.is::<NotReadBack>() {
            return Self::Failed;
        }
        let wrong_usage = error.is::<NoSuchDevice>() || error.is::<ImportError>();
        if error.is::<ProfileError>() || wrong_usage {
            return Self::Usage;
        }
        if let Some(unfit) = error.downcast_ref::<Unfit>() {
            return unfit.status();
        }
        if let Some(refusal) = error.downcast_ref::<Refusal>() {
            return match refusal {
                Refusal::Profile(_) | Refusal::NotMeant(_) => Self::Usage,
                Refusal::Infeasible(_) => Self::Infeasible,
                Refusal::InTheWay(_) | Refusal::InUse { .. } => Self::Refused,
            };
        }
        let busy = matches!(error.downcast_ref(), Some(LockError::Busy { .. }));
        if busy || error.is::<NoConsent>() || error.is::<Declared>() {
            return Self::Refused;
        }
        match error.downcast_ref::<ApplyError>() {
            Some(apply) if apply.is_interrupted() => Self::Interrupted,
            Some(apply) if apply.is_pending() => Self::NotYet,
            Some(apply) if apply.is_busy() => Self::Refused,
            _ => Self::Failed,
        }
    }
}

/// What to do about an error, where there is something to say.
pub fn hints(error: &Error) -> Vec<String> {
    if error.is::<NotReadBack>() {
        return vec![
            "nothing is undone: every step has reported success, and what cannot be read cannot be undone safely; \
             run the same command again: it goes on from there"
                .to_owned(),
        ];
    }
    let of = |hint: Option<String>| hint.into_iter().collect();
    if let Some(error) = error.downcast_ref::<ApplyError>() {
        return error.hints();
    }
    if let Some(error) = error.downcast_ref::<Refusal>() {
        return of(error.hint());
    }
    if let Some(ObserveError::Nvml(error)) = error.downcast_ref() {
        return of(error.hint().map(str::to_owned));
    }
    if let Some(error) = error.downcast_ref::<EnvironmentError>() {
        return of(Some(error.hint().to_owned()));
    }
    if let Some(error) = error.downcast_ref::<MpsError>() {
        return of(error.hint());
    }
    match error.downcast_ref() {
        Some(NoConsent::NobodyToAsk(_)) => {
            return of(Some("agree beforehand with --yes".to_owned()));
        }
        Some(NoConsent::Outgrown(_)) => {
            return of(Some(
                "look at the plan above, and run it again: it is planned anew".to_owned(),
            ));
        }
        _ => {}
    }
    if error.is::<Unfit>() {
        return of(Some(Unfit::hint().to_owned()));
    }
    if error.is::<NotAsWanted>() {
        return of(Some(
            "nothing is undone: every step has reported success; run the same command again: it goes on from here"
                .to_owned(),
        ));
    }
    Vec::new()
}
