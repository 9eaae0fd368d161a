//! The users who reach a device, compared with its record: the number of the user or group, and the permissions of the
//! pipe directory and of the log directory.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::{Finding, Node, Served};
use crate::host::{
    Access, Account, Environment, FileResult, ListFault, Permission, Uid, Writers,
    begin_group_lookup, current_group_id, current_user_id, find_list_fault, to_printable,
    user_name,
};
use crate::settings::Serve;

/// A way in which a device is open to others than its users, or closed to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessFault {
    /// Its user or group has another id than the one that its daemon serves, or is gone.
    ChangedId {
        /// `the user alice`
        who: String,
        is: Option<u32>,
        serves: u32,
    },
    /// A directory belongs to another user.
    ForeignOwner(DaemonDirectory, Uid),
    /// A directory has another access control list, or another mode.
    WrongList(DaemonDirectory, ListFault),
    /// Its users may not enter this directory above its pipe directory.
    ClosedAbove(PathBuf),
}

/// A directory of a daemon that its users enter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DaemonDirectory {
    Pipe(PathBuf),
    Log(PathBuf),
}

impl DaemonDirectory {
    fn path(&self) -> &PathBuf {
        match self {
            Self::Pipe(path) | Self::Log(path) => path,
        }
    }

    /// Returns what the users of the daemon do there.
    fn needed_permission(&self) -> Permission {
        match self {
            Self::Pipe(_) => Permission::Enter,
            Self::Log(_) => Permission::Read,
        }
    }

    /// Returns the id of the finding about others who may enter it.
    fn finding_id(&self) -> &'static str {
        match self {
            Self::Pipe(_) => "pipe-access",
            Self::Log(_) => "log-access",
        }
    }
}

/// `its pipe directory`
impl fmt::Display for DaemonDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pipe(_) => "its pipe directory",
            Self::Log(_) => "its log directory",
        })
    }
}

/// `the user alice now has the id 1044, but the daemon serves the id 1001`
impl fmt::Display for AccessFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ChangedId {
                who,
                is: Some(is),
                serves,
            } => write!(
                f,
                "{who} now has the id {is}, but the daemon serves the id {serves}"
            ),
            Self::ChangedId {
                who,
                is: None,
                serves,
            } => write!(
                f,
                "{who} no longer exists, but the daemon serves the id {serves}"
            ),
            Self::ClosedAbove(path) => {
                let path = to_printable(&path.display().to_string());
                write!(f, "the users of the device may not enter {path}")
            }
            Self::ForeignOwner(directory, owner) => {
                let owner = user_name(*owner);
                write!(f, "{directory} belongs to {owner}")
            }
            Self::WrongList(directory, fault) => {
                let closed = match directory.needed_permission() {
                    Permission::Enter => "the users of the device may not enter it",
                    Permission::Read => "the users of the device may not read it",
                };
                let closed = fault.keeps_users_out.then_some(closed);
                let others = fault.others.iter().map(String::as_str);
                let all: Vec<&str> = closed.into_iter().chain(others).collect();
                write!(f, "{directory} has wrong permissions: {}", all.join(", "))
            }
        }
    }
}

impl AccessFault {
    /// True if only a new daemon serves the right user, or has directories that others have not changed.
    pub fn needs_restart(&self) -> bool {
        match self {
            Self::ChangedId { is, .. } => is.is_some(),
            Self::ForeignOwner(..) => true,
            // Its sockets may be those of others. Before a directory that every user may write to is closed, nothing is
            // made there.
            Self::WrongList(DaemonDirectory::Pipe(_), fault) => {
                fault.writers == Some(Writers::Some)
            }
            // Root's daemon has its logs open, and reads none of others. The directories above are the administrator's.
            Self::WrongList(DaemonDirectory::Log(_), _) | Self::ClosedAbove(_) => false,
        }
    }

    /// True if the permissions of the directory can be set while the daemon runs.
    pub fn can_be_set_live(&self) -> bool {
        match self {
            Self::WrongList(_, fault) => {
                !self.needs_restart() && fault.writers != Some(Writers::All)
            }
            Self::ChangedId { .. } | Self::ForeignOwner(..) | Self::ClosedAbove(_) => false,
        }
    }
}

/// Compares the users of every running daemon with its record.
pub(super) fn find_access_faults(environment: &Environment, node: &mut Node) {
    for serve in node
        .served()
        .filter_map(|served| served.record.settings.serve.as_ref())
    {
        match serve {
            Serve::User(name) => Account::begin_lookup(name),
            Serve::Group(name) => begin_group_lookup(name),
            Serve::OneAtATime | Serve::All | Serve::Own => {}
        }
    }
    let devices = node.devices.iter_mut();
    for served in devices.filter_map(|device| device.served.as_mut()) {
        let logs = environment.logs_of(served.run_dir.path());
        let logs = logs.map(|logs| logs.join(&served.record.uuid));
        served.access = served.access_faults(logs);
    }
}

impl Served {
    /// Compares the users of a running daemon with its record. If the name service does not answer soon, the recorded id
    /// counts. A plan has looked up the names of its profile before, however long that took.
    fn access_faults(&self, logs: Option<PathBuf>) -> Vec<AccessFault> {
        let record = &self.record;
        let runs_as_root = record.runs_as_its_user().is_none();
        let (Some(daemon), true) = (record.daemon, runs_as_root && record.finished) else {
            return Vec::new();
        };
        if !self.is_alive() {
            return Vec::new();
        }
        let mut faults = Vec::new();
        let other_id = |who: String, is: FileResult<Option<u32>>| {
            let (is, serves) = (is.ok()?, record.served_id?);
            (is != Some(serves)).then_some(AccessFault::ChangedId { who, is, serves })
        };
        let (access, other_id) = match &record.settings.serve {
            Some(Serve::User(name)) => (
                record.only_user().map(Access::User),
                other_id(format!("the user {name}"), current_user_id(name)),
            ),
            Some(Serve::Group(name)) => (
                record.only_group().ok().flatten().map(Access::Group),
                other_id(format!("the group {name}"), current_group_id(name)),
            ),
            Some(Serve::Own) => (Some(Access::Owner), None),
            Some(Serve::All | Serve::OneAtATime) | None => (Some(Access::Everybody), None),
        };
        faults.extend(other_id);
        // Its state tells of one that is gone, or hidden by a mount, which nothing looks into.
        if !self.run_dir.has_pipe_dir(&record.uuid) {
            return faults;
        }
        let pipe = self.run_dir.pipe_dir(&record.uuid);
        let closed = self
            .served_users()
            .and_then(|users| self.find_closed_directory(&users));
        faults.extend(
            closed
                .filter(|closed| *closed != pipe)
                .map(AccessFault::ClosedAbove),
        );
        let directories = [
            Some(DaemonDirectory::Pipe(pipe)),
            logs.map(DaemonDirectory::Log),
        ];
        for directory in directories.into_iter().flatten() {
            let (path, to) = (directory.path(), directory.needed_permission());
            // A check of its own tells of one that is gone.
            let Ok(meta) = fs::symlink_metadata(path) else {
                continue;
            };
            let owner = Uid(meta.uid());
            let list = || find_list_fault(path, access.as_ref()?, to);
            if daemon.user.is_some_and(|user| user != owner) {
                faults.push(AccessFault::ForeignOwner(directory, owner));
            } else if let Some(fault) = list() {
                faults.push(AccessFault::WrongList(directory, fault));
            }
        }
        faults
    }
}

impl Node {
    /// Describes the faults in who reaches a device.
    pub(super) fn access_problems<'s>(
        &'s self,
        served: &'s Served,
    ) -> impl Iterator<Item = Finding> + 's {
        let name = &served.record.name;
        served.access.iter().map(move |fault| {
            let up = self.up_command();
            let (id, remedy) = match fault {
                AccessFault::ChangedId { is: Some(_), .. } => (
                    "user-changed",
                    format!("run `mig-mps restart {name}` to start a daemon for the new id"),
                ),
                AccessFault::ChangedId { is: None, .. } => (
                    "user-changed",
                    format!("run `mig-mps down {name}` to close the device"),
                ),
                AccessFault::ForeignOwner(directory, _) | AccessFault::WrongList(directory, _) => {
                    let remedy = if fault.needs_restart() {
                        format!("run `mig-mps restart {name}` to start a daemon in a new directory")
                    } else if fault.can_be_set_live() {
                        format!("run `{up}` to set its permissions again")
                    } else {
                        let path = to_printable(&directory.path().display().to_string());
                        format!("run `chmod go-w {path}` to correct them")
                    };
                    (directory.finding_id(), remedy)
                }
                AccessFault::ClosedAbove(path) => {
                    let path = to_printable(&path.display().to_string());
                    (
                        "pipe-access",
                        format!("run `chmod o+x {path}` to give them access"),
                    )
                }
            };
            Finding::fail(id, fault.to_string())
                .with_remedy(remedy)
                .on_device(name)
        })
    }
}
