//! The profile that was applied to a node.

use crate::failure::Problem;
use crate::state::{AppliedProfile, TakenDown};

/// The profile that was applied last, as far as it is known.
#[derive(Clone, Debug, Default)]
pub enum Applied {
    /// Nobody has asked.
    #[default]
    NotRead,
    /// None is recorded.
    Nothing,
    /// It cannot be read.
    Unreadable(Problem),
    Known {
        profile: Box<AppliedProfile>,
        taken_down: Option<TakenDown>,
        /// True if the node differs from it; `None` if that was not judged.
        differs: Option<bool>,
        /// True if nothing was applied since the machine was booted.
        is_of_earlier_boot: bool,
        /// True if `plan` and `up` take it where no profile is named.
        is_default: bool,
    },
}
