use std::ffi::CString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::Gid;
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

/// A user who exists on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The user's number.
    pub uid: Uid,
    /// The number of the user's own group.
    pub gid: u32,
    /// The user's name.
    pub name: String,
    /// The user's home directory.
    pub home: PathBuf,
}

impl Account {
    /// The user with that name; `None` where the system knows none.
    ///
    /// # Errors
    /// Where the system cannot tell, as when a directory service does not answer.
    pub fn named(name: &str) -> io::Result<Option<Self>> {
        Ok(nix::unistd::User::from_name(name)?.map(|user| Self {
            uid: Uid(user.uid.as_raw()),
            gid: user.gid.as_raw(),
            name: user.name,
            home: user.dir,
        }))
    }

    /// The groups that the user's processes are in.
    ///
    /// # Errors
    /// Where the system cannot tell.
    pub fn groups(&self) -> io::Result<Vec<u32>> {
        let name = CString::new(self.name.as_str())?;
        let groups = nix::unistd::getgrouplist(&name, Gid::from_raw(self.gid))?;
        Ok(groups.into_iter().map(Gid::as_raw).collect())
    }
}

/// The names that stand in a file like `/etc/passwd`: those that somebody may have meant. A directory
/// service's are not among them.
pub fn names_in(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let names = text.lines().filter_map(|line| line.split_once(':'));
    names.map(|(name, _)| name.to_owned()).collect()
}

/// The number of the group with that name; `None` where the system knows none.
///
/// # Errors
/// Where the system cannot tell.
pub fn group_named(name: &str) -> io::Result<Option<u32>> {
    let group = nix::unistd::Group::from_name(name)?;
    Ok(group.map(|group| group.gid.as_raw()))
}

/// A user's name; the number where the system knows none.
pub fn user_name(uid: Uid) -> String {
    nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid.0))
        .ok()
        .flatten()
        .map_or_else(|| uid.to_string(), |user| user.name)
}

/// A group's name; the number where the system knows none.
pub fn group_name(gid: u32) -> String {
    nix::unistd::Group::from_gid(Gid::from_raw(gid))
        .ok()
        .flatten()
        .map_or_else(|| gid.to_string(), |group| group.name)
}
