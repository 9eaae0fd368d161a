use std::ffi::CString;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::Gid;
use serde::{Deserialize, Serialize};

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
    let read = |file: &str| fs::read_to_string(file).ok();
    let overflow = read("/proc/sys/kernel/overflowuid").and_then(|text| text.trim().parse().ok());
    let is_whole = |map: String| map.split_whitespace().eq(["0", "0", "4294967295"]);
    overflow.unwrap_or(65534) == uid.0 && !read("/proc/self/uid_map").is_none_or(is_whole)
}

/// A user account of this system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub uid: Uid,
    pub gid: u32,
    pub name: String,
    /// The user's own directory, as the system's table of users has it.
    pub directory: PathBuf,
}

impl Account {
    /// Returns the user with this name, or `None` if there is none. Fails if, for example, a directory service does not
    /// answer.
    pub fn named(name: &str) -> io::Result<Option<Self>> {
        Ok(nix::unistd::User::from_name(name)?.map(Self::from))
    }

    /// Returns the user with this uid, or `None` if there is none.
    pub fn of(uid: Uid) -> io::Result<Option<Self>> {
        let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid.0))?;
        Ok(user.map(Self::from))
    }

    /// Returns the groups of the user's processes.
    pub fn groups(&self) -> io::Result<Vec<u32>> {
        let name = CString::new(self.name.as_str())?;
        let groups = nix::unistd::getgrouplist(&name, Gid::from_raw(self.gid))?;
        Ok(groups.into_iter().map(Gid::as_raw).collect())
    }
}

impl From<nix::unistd::User> for Account {
    fn from(user: nix::unistd::User) -> Self {
        Self {
            uid: Uid(user.uid.as_raw()),
            gid: user.gid.as_raw(),
            name: user.name,
            directory: user.dir,
        }
    }
}

/// Returns the names in a file like `/etc/passwd`, for suggestions. Names of a directory service are not included.
pub fn names_in(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let names = text.lines().filter_map(|line| line.split_once(':'));
    names.map(|(name, _)| name.to_owned()).collect()
}

/// Returns the id of the group with this name, or `None` if there is none.
pub fn group_named(name: &str) -> io::Result<Option<u32>> {
    let group = nix::unistd::Group::from_name(name)?;
    Ok(group.map(|group| group.gid.as_raw()))
}

/// Returns the name of a user, or the uid if there is none.
pub fn user_name(uid: Uid) -> String {
    nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid.0))
        .ok()
        .flatten()
        .map_or_else(|| uid.to_string(), |user| user.name)
}

/// Returns the name of a group, or the gid if there is none.
pub fn group_name(gid: u32) -> String {
    nix::unistd::Group::from_gid(Gid::from_raw(gid))
        .ok()
        .flatten()
        .map_or_else(|| gid.to_string(), |group| group.name)
}
