use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Account, Uid, caller};

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
            return Self::caller();
        }
        let account = Account::of(user).ok().flatten();
        let groups = account.and_then(|account| account.groups().ok());
        Self::User(user, groups.unwrap_or_default())
    }

    /// Returns the user who runs this program.
    pub fn caller() -> Self {
        let groups = rustix::process::getgroups().unwrap_or_default();
        let all = std::iter::once(rustix::process::getegid()).chain(groups);
        Self::User(caller(), all.map(rustix::process::Gid::as_raw).collect())
    }

    /// Returns the topmost directory above `path` that the reader cannot enter. Without access to all of the directories
    /// CUDA silently runs without MPS.
    pub fn is_kept_out_of(&self, path: &Path) -> Option<PathBuf> {
        let parents: Vec<&Path> = path.ancestors().skip(1).collect();
        let closed = parents.into_iter().rev().find(|parent| {
            let meta = fs::metadata(parent);
            meta.is_ok_and(|meta| !self.may_enter(meta.uid(), meta.gid(), meta.mode()))
        });
        closed.map(Path::to_owned)
    }

    fn may_enter(&self, owner: u32, group: u32, mode: u32) -> bool {
        let bit = match self {
            Self::User(Uid::ROOT, _) => return true,
            Self::User(uid, _) if uid.0 == owner => 0o100,
            Self::User(_, groups) if groups.contains(&group) => 0o010,
            Self::Group(members) if *members == group => 0o010,
            Self::User(..) | Self::Group(_) => 0o001,
        };
        mode & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_matching_permission_decides() {
        let alice = Reader::User(Uid(1000), vec![1000, 50]);
        for (owner, group, mode, may) in [
            (1000, 0, 0o700, true),
            (1000, 0, 0o077, false),
            (0, 50, 0o710, true),
            (0, 50, 0o701, false),
            (0, 0, 0o711, true),
            (0, 0, 0o700, false),
        ] {
            assert_eq!(
                alice.may_enter(owner, group, mode),
                may,
                "{owner} {group} {mode:o}"
            );
        }
        let root = Reader::User(Uid::ROOT, Vec::new());
        assert!(root.may_enter(1000, 1000, 0o000));
        let vision = Reader::Group(50);
        assert!(vision.may_enter(0, 50, 0o750) && !vision.may_enter(0, 0, 0o750));
    }
}
