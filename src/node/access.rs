//! The users who reach a device, compared with its record: the number of the user or group, and the list of the pipe
//! directory.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;

use super::{Finding, Node, Served};
use crate::host::{
    Access, Account, ListFault, Uid, Writers, begin_group_lookup, list_fault, present_group,
    present_user, printable, user_name,
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
    /// Its pipe directory belongs to another user.
    ForeignOwner(Uid),
    /// Its pipe directory has another access control list, or another mode.
    WrongList(ListFault),
}

/// `the user alice now has the id 1044, and its daemon serves 1001`
impl fmt::Display for AccessFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ChangedId {
                who,
                is: Some(is),
                serves,
            } => write!(
                f,
                "{who} now has the id {is}, and its daemon serves {serves}"
            ),
            Self::ChangedId {
                who,
                is: None,
                serves,
            } => write!(f, "{who} is gone, and its daemon serves the id {serves}"),
            Self::ForeignOwner(owner) => {
                let owner = user_name(*owner);
                write!(f, "its pipe directory belongs to {owner}")
            }
            Self::WrongList(fault) => {
                let closed = fault
                    .keeps_users_out
                    .then_some("its users may not enter it");
                let others = fault.others.iter().map(String::as_str);
                let all: Vec<&str> = closed.into_iter().chain(others).collect();
                write!(
                    f,
                    "its pipe directory has other permissions: {}",
                    all.join(", ")
                )
            }
        }
    }
}

impl AccessFault {
    /// True if only another daemon serves the right user, in a directory of its own.
    pub fn needs_restart(&self) -> bool {
        match self {
            Self::ChangedId { is, .. } => is.is_some(),
            Self::ForeignOwner(_) => true,
            // Where every user may write, nothing is made before that has ended.
            Self::WrongList(fault) => fault.writers == Some(Writers::Some),
        }
    }

    /// True if the permissions of the pipe directory can be set while the daemon runs.
    pub fn is_set_live(&self) -> bool {
        matches!(self, Self::WrongList(fault) if fault.writers.is_none())
    }
}

/// Compares the users of every running daemon with its record.
pub(super) fn find_access_faults(node: &mut Node) {
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
        served.access = served.access_faults();
    }
}

impl Served {
    /// Compares the users of a running daemon with its record. A name service that does not answer soon says nothing.
    fn access_faults(&self) -> Vec<AccessFault> {
        let record = &self.record;
        let runs_as_root = record.runs_as_its_user().is_none();
        let (Some(daemon), true) = (record.daemon, runs_as_root && record.finished) else {
            return Vec::new();
        };
        if !self.is_alive() {
            return Vec::new();
        }
        let mut faults = Vec::new();
        let other_id = |who: String, is: std::io::Result<Option<u32>>| {
            let (is, serves) = (is.ok()?, record.served_id?);
            (is != Some(serves)).then_some(AccessFault::ChangedId { who, is, serves })
        };
        let (access, other_id) = match &record.settings.serve {
            Some(Serve::User(name)) => (
                record.only_user().map(Access::User),
                other_id(format!("the user {name}"), present_user(name)),
            ),
            Some(Serve::Group(name)) => (
                record.only_group().ok().flatten().map(Access::Group),
                other_id(format!("the group {name}"), present_group(name)),
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
        let Ok(meta) = fs::symlink_metadata(&pipe) else {
            return faults;
        };
        let owner = Uid(meta.uid());
        if daemon.user.is_some_and(|user| user != owner) {
            faults.push(AccessFault::ForeignOwner(owner));
        } else if let Some(fault) = access.and_then(|access| list_fault(&pipe, &access)) {
            faults.push(AccessFault::WrongList(fault));
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
                    format!("`mig-mps restart {name}` starts one that serves the new id"),
                ),
                AccessFault::ChangedId { is: None, .. } => (
                    "user-changed",
                    format!("`mig-mps down {name}` closes the device"),
                ),
                AccessFault::ForeignOwner(_) | AccessFault::WrongList(_)
                    if fault.needs_restart() =>
                {
                    (
                        "pipe-access",
                        format!("`mig-mps restart {name}` starts another in a new directory"),
                    )
                }
                _ if fault.is_set_live() => {
                    ("pipe-access", format!("`{up}` sets its permissions again"))
                }
                AccessFault::ForeignOwner(_) | AccessFault::WrongList(_) => {
                    let pipe = served.run_dir.pipe_dir(&served.record.uuid);
                    let pipe = printable(&pipe.display().to_string());
                    ("pipe-access", format!("`chmod go-w {pipe}` ends that"))
                }
            };
            Finding::fail(id, fault.to_string())
                .with_remedy(remedy)
                .on(name)
        })
    }
}
