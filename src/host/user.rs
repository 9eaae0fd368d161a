//! Users, what a user may read, and commands for root as the caller has to type them.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::{fmt, fs, thread};

use nix::unistd::{setfsgid, setfsuid};
use rustix::process::Gid;
use rustix::thread::set_thread_groups;
use serde::{Deserialize, Serialize};

use super::accounts::Account;
use super::files::read_number;
use super::{KEEP, quote_for_shell};
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
    let overflow = read_number("/proc/sys/kernel/overflowuid").unwrap_or(65534);
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

/// A user whose programs must be able to enter a directory, with the groups of these programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reader {
    user: Uid,
    groups: Vec<u32>,
}

/// A user without files, groups or permissions of its own.
const UNPRIVILEGED: u32 = 65534;

impl Reader {
    /// Returns the user of a process with these groups.
    pub fn new(user: Uid, groups: Vec<u32>) -> Self {
        Self { user, groups }
    }

    /// Returns the user with the groups of the user's processes. For the caller, the groups of this process are in force.
    pub fn from_account(user: Uid) -> Self {
        if user == caller() {
            return Self::new(user, Vec::new());
        }
        let account = Account::from_uid(user).ok().flatten();
        let groups = account.and_then(|account| account.look_up_groups().ok());
        Self::new(user, groups.unwrap_or_default())
    }

    /// Returns a user who may only do what every user may do.
    pub fn any_user() -> Self {
        Self::any_member(UNPRIVILEGED)
    }

    /// Returns a user who may only do what every member of a group may do.
    pub fn any_member(group: u32) -> Self {
        Self::new(Uid(UNPRIVILEGED), vec![group])
    }

    /// Asks the kernel for the topmost directory above `path` that the reader cannot enter. Without access to all of the
    /// directories CUDA silently runs without MPS. `None` if there is none, or if the caller cannot ask for another user.
    pub fn find_closed_directory(&self, path: &Path) -> Option<PathBuf> {
        if self.user == caller() {
            return find_closed_directory(path);
        }
        thread::scope(|scope| {
            let asks = || self.access_files_as().then(|| find_closed_directory(path));
            let thread = thread::Builder::new().spawn_scoped(scope, asks).ok()?;
            thread.join().ok()??
        })
    }

    /// Gives the calling thread the reader's access to files. It stays the caller's for signals and tracing. Returns false
    /// if the system does not allow that.
    fn access_files_as(&self) -> bool {
        let groups = self.groups.iter().map(|group| Gid::from_raw(*group));
        if set_thread_groups(&groups.collect::<Vec<Gid>>()).is_err() {
            return false;
        }
        let own_group = self.groups.first().copied().unwrap_or(UNPRIVILEGED);
        let (uid, gid) = (self.user.0.into(), own_group.into());
        setfsgid(gid);
        setfsuid(uid);
        // Each call returns only what was in force before it.
        setfsgid(gid) == gid && setfsuid(uid) == uid
    }
}

fn find_closed_directory(path: &Path) -> Option<PathBuf> {
    let parents: Vec<&Path> = path.ancestors().skip(1).collect();
    let closed = parents.into_iter().rev().find(|parent| {
        // The entry of a directory for itself is reached by who may enter the directory.
        let entered = fs::metadata(parent.join("."));
        entered.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    });
    closed.map(Path::to_owned)
}

/// Returns the remedy for what only root may do: this command line with sudo in front. Root needs no sudo.
pub fn root_hint() -> String {
    if caller() == Uid::ROOT {
        "run the command on the host, because root of a container may lack the privilege".to_owned()
    } else if std::env::args_os().nth(1).is_some_and(|word| word == KEEP) {
        // The user did not run this process.
        "ask the administrator for access".to_owned()
    } else {
        format!("run it as root: `{}`", sudo_command_line())
    }
}

/// Returns a command, or a text with commands in backticks, without the sudo that root does not need.
pub fn strip_needless_sudo(text: &str) -> String {
    if caller() == Uid::ROOT {
        let text = text.strip_prefix("sudo ").unwrap_or(text);
        text.replace("`sudo ", "`")
    } else {
        text.to_owned()
    }
}

/// Returns this command line with sudo in front, to be pasted into a shell: `sudo mig-mps up 'my profile.toml'`.
pub fn sudo_command_line() -> String {
    let words = std::env::args_os()
        .skip(1)
        .map(|word: OsString| quote_for_shell(&word.to_string_lossy()));
    let mut line = vec![sudo_mig_mps()];
    line.extend(words);
    line.join(" ")
}

/// Returns the beginning of a command of mig-mps that root runs in the caller's place: `sudo mig-mps`.
pub fn sudo_mig_mps() -> String {
    // sudo takes no variable of the caller over.
    let variables = [RUN_DIR, LOG_DIR, STATE_DIR]
        .into_iter()
        .filter_map(|name| {
            let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
            Some(format!(
                "{name}={} ",
                quote_for_shell(&value.to_string_lossy())
            ))
        });
    format!("sudo {}mig-mps", variables.collect::<String>())
}
