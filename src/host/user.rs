use std::fmt;

use serde::{Deserialize, Serialize};

/// A user's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Uid(pub u32);

impl Uid {
    /// The superuser.
    pub const ROOT: Self = Self(0);
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who runs this program (its effective uid).
pub fn caller() -> Uid {
    Uid(rustix::process::geteuid().as_raw())
}

/// A user's name; the number where the system knows none.
pub fn user_name(uid: Uid) -> String {
    nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid.0))
        .ok()
        .flatten()
        .map_or_else(|| uid.to_string(), |user| user.name)
}
