use std::ffi::OsStr;
use std::io;

use crate::host::{self, Account, Directory, Reader, Uid};
use crate::settings::Cpus;

/// The options of a daemon's start.
#[derive(Clone, Debug)]
pub struct LaunchOptions {
    /// The UUID of its device.
    pub device: String,
    /// One server of root serves all users at once.
    pub multiuser: bool,
    /// The users who may connect.
    pub access: Access,
    /// Users and groups that must be able to enter the directories above, with their names.
    pub readers: Vec<(String, Reader)>,
    pub cpus: Option<Cpus>,
    /// The limit of open files; by default [`NOFILE`](crate::settings::NOFILE), or the system's limit if that is lower.
    pub nofile: Option<u64>,
}

/// The users who may connect to a daemon, as the permissions of its directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every user of the node.
    Everybody,
    /// The user who runs `mig-mps`.
    Owner,
    /// The members of a group, by its gid.
    Group(u32),
    /// Another user, who also runs the daemon.
    User(Account),
}

impl Access {
    pub(super) fn mode(&self) -> u32 {
        match self {
            Self::Everybody => 0o755,
            Self::Group(_) => 0o750,
            Self::Owner | Self::User(_) => 0o700,
        }
    }

    /// Returns the other user who runs the daemon.
    pub(super) fn user(&self) -> Option<&Account> {
        match self {
            Self::User(account) => Some(account),
            _ => None,
        }
    }

    /// The user who runs the daemon and owns its directories.
    pub(super) fn owner(&self) -> Uid {
        self.user().map_or_else(host::caller, |account| account.uid)
    }

    /// Makes a directory of the owner for them.
    pub(super) fn make_in(
        &self,
        parent: &Directory,
        name: impl AsRef<OsStr>,
        mode: u32,
    ) -> io::Result<Directory> {
        let group = match self {
            Self::Group(group) => Some(*group),
            _ => self.user().map(|account| account.gid),
        };
        parent.make_child_of(name, mode, self.owner(), group)
    }
}
