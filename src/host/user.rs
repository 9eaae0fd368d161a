//! Users, what a user may read, and commands for root as the caller has to type them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use serde::{Deserialize, Serialize};

use super::accounts::Account;
use super::acl::AccessList;
use super::files::number_in;
use super::{KEEP, quoted};
use crate::config::{LOG_DIR, RUN_DIR, STATE_DIR};

/// A user id.
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

/// Returns the user who runs this program (the effective uid).
pub fn caller() -> Uid {
    Uid(rustix::process::geteuid().as_raw())
}

/// True if files of this user may be those of users that the namespace of this process does not map: the kernel shows them
/// as the overflow user, who is `nobody` on most systems.
pub(super) fn may_be_unmapped(uid: Uid) -> bool {
    let overflow = number_in("/proc/sys/kernel/overflowuid").unwrap_or(65534);
    overflow == u64::from(uid.0)
        && fs::read_to_string("/proc/self/uid_map")
            .is_ok_and(|map| !map.split_whitespace().eq(["0", "0", "4294967295"]))
}

/// The users who may enter a directory, which belongs to the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every user of the node.
    Everybody,
    /// The user who runs `mig-mps`.
    Owner,
    /// The members of a group, by its gid.
    Group(u32),
    /// One other user.
    User(Uid),
}

/// A user or group that must be able to enter a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A user and the groups of the user's processes.
    User(Uid, Vec<u32>),
    /// All members of a group.
    Group(u32),
}

impl Reader {
    /// Returns the user with the groups of the user's processes.
    pub fn of(user: Uid) -> Self {
        if user == caller() {
            let groups = rustix::process::getgroups().unwrap_or_default();
            let all = std::iter::once(rustix::process::getegid()).chain(groups);
            return Self::User(user, all.map(rustix::process::Gid::as_raw).collect());
        }
        let account = Account::of(user).ok().flatten();
        let groups = account.and_then(|account| account.groups().ok());
        Self::User(user, groups.unwrap_or_default())
    }

    /// Returns the topmost directory above `path` that the reader cannot enter. Without access to all of the directories
    /// CUDA silently runs without MPS.
    pub fn is_kept_out_of(&self, path: &Path) -> Option<PathBuf> {
        let parents: Vec<&Path> = path.ancestors().skip(1).collect();
        let closed = parents.into_iter().rev().find(|parent| {
            let meta = fs::metadata(parent);
            meta.is_ok_and(|meta| !self.is_let_in(&AccessList::of(parent, &meta)))
        });
        closed.map(Path::to_owned)
    }

    fn is_let_in(&self, list: &AccessList) -> bool {
        match self {
            Self::User(Uid::ROOT, _) => true,
            Self::User(uid, groups) => list.lets_in(Some(*uid), groups),
            Self::Group(group) => list.lets_in(None, &[*group]),
        }
    }
}

/// Returns the remedy for what only root may do: this command line with sudo in front. Root needs no sudo.
pub fn as_root() -> String {
    if caller() == Uid::ROOT {
        "root of a container may lack the privilege: run it on the host".to_owned()
    } else if std::env::args_os().nth(1).is_some_and(|word| word == KEEP) {
        // The user did not run this process.
        "only root may do that: ask the administrator".to_owned()
    } else {
        format!("run it as root: {}", with_sudo())
    }
}

/// Returns a command, or a text with commands in backticks, without the sudo that root does not need.
pub fn without_needless_sudo(text: &str) -> String {
    if caller() == Uid::ROOT {
        let text = text.strip_prefix("sudo ").unwrap_or(text);
        text.replace("`sudo ", "`")
    } else {
        text.to_owned()
    }
}

/// Returns this command line with sudo in front, to be pasted into a shell: `sudo mig-mps up 'my profile.toml'`.
pub fn with_sudo() -> String {
    // sudo takes no variable of the caller over.
    let variables = [RUN_DIR, LOG_DIR, STATE_DIR]
        .into_iter()
        .filter_map(|name| {
            let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
            Some(format!("{name}={}", quoted(&value.to_string_lossy())))
        });
    let words = std::env::args_os()
        .skip(1)
        .map(|word: OsString| quoted(&word.to_string_lossy()));
    let mut line = vec!["sudo".to_owned()];
    line.extend(variables);
    line.push("mig-mps".to_owned());
    line.extend(words);
    line.join(" ")
}
