//! Access control lists of files (acl(5)): the users and groups beside the owner that a directory lets in.

use std::fs::Metadata;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{XattrFlags, fremovexattr, fsetxattr, getxattr};
use rustix::io::Errno;

use super::{Access, FileError, FileResult, Uid, group_name, user_name};

/// The extended attribute in which the kernel keeps the list, and the version of its format (`linux/posix_acl_xattr.h`).
const ATTRIBUTE: &str = "system.posix_acl_access";

/// The attribute with the list that new entries of a directory inherit. Directories of mig-mps have none.
const DEFAULT_ATTRIBUTE: &str = "system.posix_acl_default";

const FORMAT_VERSION: u32 = 2;

/// The bytes of the version and of an entry, of a list that is not long, and of the longest value of an attribute (xattr(7)).
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
const SHORT_LIST_BYTES: usize = 512;
const MAX_LIST_BYTES: usize = 64 << 10;

/// The kinds of entries.
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWN_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

/// The id of an entry that is about no single user or group.
const NOBODY: u32 = u32::MAX;

/// The permissions to enter a directory, and to write.
const ENTER: u16 = 0o1;
const WRITE: u16 = 0o2;

/// The things that the list of a directory lets one user do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Reach the entries whose names are known.
    Enter,
    /// List the entries, too.
    Read,
}

impl Permission {
    fn bits(self) -> u16 {
        match self {
            Self::Enter => ENTER,
            Self::Read => 0o4 | ENTER,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    kind: u16,
    permissions: u16,
    id: u32,
}

/// The users and groups that may enter a directory.
#[derive(Debug)]
struct AccessList {
    owner: u32,
    group: u32,
    entries: Vec<Entry>,
}

impl AccessList {
    /// Returns the list of a directory. One without a list has an equal one: its mode.
    fn from_directory(path: &Path, meta: &Metadata) -> Self {
        Self {
            owner: meta.uid(),
            group: meta.gid(),
            entries: read_entries(path).unwrap_or_else(|| entries_from_mode(meta.mode())),
        }
    }

    /// True if a process of this user, or any with only the group, may do this.
    fn allows(&self, what: Permission, user: Option<Uid>, group: Option<u32>) -> bool {
        let of = |kind| self.entries.iter().filter(move |entry| entry.kind == kind);
        let is_open = |entry: &Entry| entry.permissions & what.bits() == what.bits();
        let is_unmasked = of(MASK).all(is_open);
        if user.is_some_and(|user| user.0 == self.owner) {
            return of(OWNER).any(is_open);
        }
        if let Some(named) = of(USER).find(|entry| user == Some(Uid(entry.id))) {
            return is_unmasked && is_open(named);
        }
        let is_of_group = |entry: &&Entry| match entry.kind {
            OWN_GROUP => group == Some(self.group),
            GROUP => group == Some(entry.id),
            _ => false,
        };
        let mut theirs = self.entries.iter().filter(is_of_group).peekable();
        if theirs.peek().is_some() {
            return is_unmasked && theirs.any(is_open);
        }
        of(OTHERS).any(is_open)
    }
}

/// A user or a group that a list names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Principal {
    User(Uid),
    Group(u32),
}

/// Returns the users and groups that the list of a file or directory, if it has one, lets write to it.
pub(super) fn list_writers(path: &Path) -> Vec<Principal> {
    let entries = read_entries(path).unwrap_or_default();
    let mask = entries.iter().find(|entry| entry.kind == MASK);
    let mask = mask.map_or(0o7, |mask| mask.permissions);
    entries
        .iter()
        .filter(|entry| entry.permissions & mask & WRITE != 0)
        .filter_map(|entry| match entry.kind {
            USER => Some(Principal::User(Uid(entry.id))),
            GROUP => Some(Principal::Group(entry.id)),
            _ => None,
        })
        .collect()
}

/// Returns the users of a directory beside its owner: the single one in its list, or the group of its mode. `None` if there
/// are others, or none.
pub fn directory_access(directory: &Path) -> Option<Access> {
    let meta = std::fs::symlink_metadata(directory).ok()?;
    let list = AccessList::from_directory(directory, &meta);
    let of = |kind| list.entries.iter().filter(move |entry| entry.kind == kind);
    let is_open = |kind| of(kind).any(|entry| entry.permissions & ENTER != 0);
    if is_open(OTHERS) || of(GROUP).next().is_some() {
        return None;
    }
    let users: Vec<&Entry> = of(USER).collect();
    match users.as_slice() {
        [] if is_open(OWN_GROUP) => Some(Access::Group(list.group)),
        [user] if !is_open(OWN_GROUP) => Some(Access::User(Uid(user.id))),
        _ => None,
    }
}

/// The ways in which the list of a directory is not the one that lets in certain users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListFault {
    /// True if it keeps them out.
    pub keeps_users_out: bool,
    /// The things that others may do there, such as `the user bob may enter it`.
    pub others: Vec<String>,
    /// The users who may write to it: its files may be theirs.
    pub writers: Option<Writers>,
}

/// Users who may write to a directory of root's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    Some,
    /// By its mode.
    All,
}

/// Compares the list of a directory with the one that lets exactly these users do this. Returns `None` if they may do the
/// same.
pub fn find_list_fault(directory: &Path, access: &Access, to: Permission) -> Option<ListFault> {
    let meta = std::fs::symlink_metadata(directory).ok()?;
    let fault = AccessList::from_directory(directory, &meta).find_fault(access, to);
    (fault != ListFault::default()).then_some(fault)
}

impl AccessList {
    fn find_fault(&self, access: &Access, to: Permission) -> ListFault {
        let is_let_in = match access {
            Access::Everybody => self.allows(to, None, None),
            Access::Group(group) => self.allows(to, None, Some(*group)),
            // Root needs no permission.
            Access::User(Uid::ROOT) | Access::Owner => true,
            Access::User(user) => self.allows(to, Some(*user), None),
        };
        let mask = self.entries.iter().find(|entry| entry.kind == MASK);
        let mask = mask.map_or(0o7, |mask| mask.permissions);
        let mut writers = None;
        let others = self.entries.iter().filter_map(|entry| {
            let (may, group) = match entry.kind {
                OTHERS => (entry.permissions, None),
                USER if entry.id == self.owner || entry.id == 0 => return None,
                USER => (entry.permissions & mask, None),
                OWN_GROUP => (entry.permissions & mask, Some(self.group)),
                GROUP => (entry.permissions & mask, Some(entry.id)),
                _ => return None,
            };
            let is_meant = match access {
                Access::Everybody => true,
                Access::Group(meant) => group == Some(*meant),
                Access::User(meant) => entry.kind == USER && entry.id == meant.0,
                Access::Owner => false,
            };
            let what = match may {
                0 => return None,
                _ if may & WRITE != 0 => {
                    writers = match entry.kind {
                        OTHERS => Some(Writers::All),
                        _ => writers.or(Some(Writers::Some)),
                    };
                    "write to it"
                }
                _ if is_meant => return None,
                _ if may & ENTER != 0 => "enter it",
                _ => "list it",
            };
            Some(match (entry.kind, group) {
                (OTHERS, _) => format!("every user may {what}"),
                (_, Some(group)) => format!("the group {} may {what}", group_name(group)),
                _ => format!("the user {} may {what}", user_name(Uid(entry.id))),
            })
        });
        let others = others.collect();
        ListFault {
            keeps_users_out: !is_let_in,
            others,
            writers,
        }
    }
}

/// Returns the entries of a list, or `None` if there is none.
fn read_entries(path: &Path) -> Option<Vec<Entry>> {
    let mut few = [0; SHORT_LIST_BYTES];
    match getxattr(path, ATTRIBUTE, &mut few[..]) {
        Ok(length) => parse_entries(&few[..length]),
        Err(Errno::RANGE) => {
            let mut bytes = vec![0; MAX_LIST_BYTES];
            let length = getxattr(path, ATTRIBUTE, &mut bytes[..]).ok()?;
            parse_entries(&bytes[..length])
        }
        Err(_) => None,
    }
}

/// Reads the value of the attribute. Returns `None` if there is none.
fn parse_entries(bytes: &[u8]) -> Option<Vec<Entry>> {
    let (version, entries) = bytes.split_at_checked(HEADER_BYTES)?;
    if version != FORMAT_VERSION.to_le_bytes() {
        return None;
    }
    let entry = |entry: &[u8]| {
        Some(Entry {
            kind: u16::from_le_bytes(entry[..2].try_into().ok()?),
            permissions: u16::from_le_bytes(entry[2..4].try_into().ok()?),
            id: u32::from_le_bytes(entry[4..].try_into().ok()?),
        })
    };
    entries.chunks_exact(ENTRY_BYTES).map(entry).collect()
}

fn entries_from_mode(mode: u32) -> Vec<Entry> {
    [(OWNER, 6), (OWN_GROUP, 3), (OTHERS, 0)]
        .map(|(kind, shift)| Entry {
            kind,
            permissions: u16::try_from(mode >> shift & 0o7).unwrap_or_default(),
            id: NOBODY,
        })
        .to_vec()
}

/// Lets one user into a directory beside its owner, and nobody else. Mode and list change at once.
pub(super) fn grant_access(directory: impl AsFd, user: Uid, to: Permission) -> FileResult<()> {
    let permissions = to.bits();
    let entries = [
        (OWNER, 0o7, NOBODY),
        (USER, permissions, user.0),
        (OWN_GROUP, 0, NOBODY),
        (MASK, permissions, NOBODY),
        (OTHERS, 0, NOBODY),
    ];
    let mut value = FORMAT_VERSION.to_le_bytes().to_vec();
    for (kind, permissions, id) in entries {
        value.extend(kind.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    let directory = directory.as_fd();
    remove_attribute(directory, DEFAULT_ATTRIBUTE)?;
    match fsetxattr(directory, ATTRIBUTE, &value, XattrFlags::empty()) {
        Err(Errno::OPNOTSUPP) => Err(no_lists()),
        set => Ok(set?),
    }
}

/// Takes its lists from a directory, which then has only its mode. New entries inherit nothing.
pub(super) fn remove_lists(directory: impl AsFd) -> FileResult<()> {
    let directory = directory.as_fd();
    remove_attribute(directory, DEFAULT_ATTRIBUTE)?;
    remove_attribute(directory, ATTRIBUTE)
}

fn remove_attribute(directory: BorrowedFd<'_>, attribute: &str) -> FileResult<()> {
    match fremovexattr(directory, attribute) {
        Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Fails if the file system of a directory, or of the nearest one above that exists, has no lists.
pub fn check_lists(path: &Path) -> FileResult<()> {
    let exists = path.ancestors().find(|path| path.exists());
    let Some(directory) = exists else {
        return Ok(());
    };
    match getxattr(directory, ATTRIBUTE, &mut [0_u8; HEADER_BYTES][..]) {
        Err(Errno::OPNOTSUPP) => Err(no_lists().at(directory)),
        _ => Ok(()),
    }
}

fn no_lists() -> FileError {
    let why =
        "its file system does not support access control lists, which give access to one user";
    FileError::new(io::ErrorKind::Unsupported, why)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Users that no machine has.
    const ALICE: Uid = Uid(61_000);
    const BOB: Uid = Uid(61_001);

    /// A directory of root and of group 0.
    fn list(entries: Vec<Entry>) -> AccessList {
        AccessList {
            owner: 0,
            group: 0,
            entries,
        }
    }

    fn entry(kind: u16, permissions: u16, id: u32) -> Entry {
        Entry {
            kind,
            permissions,
            id,
        }
    }

    #[test]
    fn the_first_matching_permission_decides() {
        let keeps_out = |owner, mode, access: Access| {
            let list = AccessList {
                owner,
                group: 0,
                entries: entries_from_mode(mode),
            };
            list.find_fault(&access, Permission::Enter).keeps_users_out
        };
        let alice = || Access::User(ALICE);
        assert!(!keeps_out(ALICE.0, 0o700, alice()) && keeps_out(ALICE.0, 0o077, alice()));
        assert!(!keeps_out(0, 0o711, alice()) && keeps_out(0, 0o700, alice()));
        assert!(!keeps_out(0, 0o710, Access::Group(0)) && keeps_out(0, 0o701, Access::Group(0)));
        assert!(!keeps_out(0, 0o701, Access::Group(50)) && keeps_out(0, 0o710, Access::Group(50)));
        assert!(!keeps_out(0, 0o700, Access::User(Uid::ROOT)));
    }

    #[test]
    fn a_list_names_users_and_groups() {
        let keeps_out = |mask, access: Access| {
            let list = list(vec![
                entry(OWNER, 7, NOBODY),
                entry(USER, 1, ALICE.0),
                entry(OWN_GROUP, 0, NOBODY),
                entry(GROUP, 5, 50),
                entry(MASK, mask, NOBODY),
                entry(OTHERS, 0, NOBODY),
            ]);
            list.find_fault(&access, Permission::Enter).keeps_users_out
        };
        let (alice, bob) = (Access::User(ALICE), Access::User(BOB));
        assert!(!keeps_out(5, alice.clone()) && keeps_out(5, bob));
        assert!(!keeps_out(5, Access::Group(50)) && keeps_out(5, Access::Group(0)));
        assert!(keeps_out(4, alice) && keeps_out(4, Access::Group(50)));
    }

    /// Each kind of directory, with what its users and others may do.
    #[test]
    fn other_lists_are_described() {
        let fault = |mode, access: Access| {
            let fault = list(entries_from_mode(mode)).find_fault(&access, Permission::Enter);
            (fault.keeps_users_out, fault.others.join(", "))
        };
        let none = || (false, String::new());
        assert_eq!(fault(0o755, Access::Everybody), none());
        assert_eq!(fault(0o700, Access::Everybody), (true, String::new()));
        assert_eq!(
            fault(0o757, Access::Everybody).1,
            "every user may write to it"
        );
        assert_eq!(fault(0o750, Access::Group(0)), none());
        assert_eq!(fault(0o751, Access::Group(0)).1, "every user may enter it");
        assert!(fault(0o750, Access::Group(61_000)).0);
        assert_eq!(fault(0o700, Access::Owner), none());
        assert_eq!(fault(0o704, Access::Owner).1, "every user may list it");
        let with = |mask, others: &[Entry]| {
            let mut entries = entries_from_mode(0o700);
            entries.extend([entry(USER, 1, ALICE.0), entry(MASK, mask, NOBODY)]);
            entries.extend_from_slice(others);
            list(entries).find_fault(&Access::User(ALICE), Permission::Enter)
        };
        assert_eq!(with(1, &[]), ListFault::default());
        assert!(with(0, &[]).keeps_users_out);
        let foreign = [entry(USER, 7, BOB.0), entry(GROUP, 1, 61_002)];
        assert_eq!(
            with(7, &foreign).others,
            [
                "the user 61001 may write to it",
                "the group 61002 may enter it"
            ]
        );
        assert_eq!(
            with(1, &foreign[..1]).others,
            ["the user 61001 may enter it"]
        );
        assert_eq!(with(0, &foreign).others, Vec::<String>::new());
        // Users who are to list a directory are kept out if they can only reach its entries.
        let to_read =
            |mode| list(entries_from_mode(mode)).find_fault(&Access::Everybody, Permission::Read);
        assert!(to_read(0o751).keeps_users_out);
        assert_eq!(to_read(0o755), ListFault::default());
    }

    #[test]
    fn what_is_written_reads_back() {
        let directory = tempfile::tempdir().unwrap();
        let open = std::fs::File::open(directory.path()).unwrap();
        let closed = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(directory.path(), closed).unwrap();
        check_lists(directory.path()).unwrap();
        let keeps_out = |user| {
            let access = Access::User(user);
            find_list_fault(directory.path(), &access, Permission::Enter)
                .is_some_and(|fault| fault.keeps_users_out)
        };
        assert!(keeps_out(ALICE));
        let inherits = || {
            getxattr(
                directory.path(),
                DEFAULT_ATTRIBUTE,
                &mut [0_u8; SHORT_LIST_BYTES][..],
            )
        };
        let value = [
            2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 5, 0, 255, 255, 255, 255,
        ]
        .into_iter()
        .chain([0x20, 0, 5, 0, 255, 255, 255, 255])
        .collect::<Vec<u8>>();
        let inherit = || fsetxattr(&open, DEFAULT_ATTRIBUTE, &value, XattrFlags::empty());
        inherit().unwrap();
        assert!(inherits().is_ok());
        grant_access(&open, ALICE, Permission::Enter).unwrap();
        assert_eq!(inherits(), Err(Errno::NODATA));
        inherit().unwrap();
        assert!(!keeps_out(ALICE) && keeps_out(BOB));
        assert_eq!(open.metadata().unwrap().mode() & 0o7777, 0o710);
        assert_eq!(list_writers(directory.path()), []);
        remove_lists(&open).unwrap();
        remove_lists(&open).unwrap();
        assert!(keeps_out(ALICE));
        assert_eq!(inherits(), Err(Errno::NODATA));
    }

    #[test]
    fn a_list_of_another_form_is_none() {
        assert_eq!(parse_entries(&[]), None);
        assert_eq!(parse_entries(&3_u32.to_le_bytes()), None);
    }
}
