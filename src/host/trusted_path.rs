//! Walks a path from the root, checking every directory on it: for directories, for files that only their owner may
//! read, and for programs that run as root.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fchmod, fstat, mkdirat, openat, readlinkat};
use rustix::io::Errno;

use super::acl::{self, Principal, list_writers};
use super::directory::check_local_mount;
use super::file_error::{FileFault, describe_owner};
use super::files::open_parent;
use super::{Directory, FileError, FileResult, Uid, caller, group_name, user_name};

/// The most links that are followed in a path, as in the kernel.
const MOST_LINKS: usize = 40;

/// The first group id for users. Lower ones are for the system (login.defs, `SYS_GID_MAX`).
const FIRST_USERS_GROUP: u32 = 1000;

/// The mode bit for writing by others.
pub(super) const OTHERS_WRITE: u32 = 0o002;
/// The mode bit for writing by the group.
pub(super) const GROUP_WRITE: u32 = 0o020;
/// The mode bit that lets users rename and remove only their own entries.
const STICKY: u32 = 0o1000;

/// Returns device and inode of the entry at a path that another user chose, or `None` if there is none.
///
/// Follows no link of a user, and enters no file system that may hang, such as FUSE or NFS.
pub fn stat_untrusted(path: &Path) -> FileResult<Option<(u64, u64)>> {
    let found = walk_path(path, Walk::Claimed).and_then(|found| Ok(fstat(found)?));
    match found {
        Ok(meta) => Ok(Some((meta.st_dev, meta.st_ino))),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error.at(path)),
    }
}

fn is_absent(error: &FileError) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

/// The requirements for a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Walk {
    /// Only root and the caller control the path.
    Ours,
    /// The same, and missing directories are created, the last one with this mode.
    Make(u32),
    /// Any user may control the path, and it may lead anywhere.
    Claimed,
    /// The caller names the path. It may lead anywhere, but root follows no link of another user.
    Named,
    /// The same, and missing directories are created.
    MakeNamed,
}

impl Walk {
    /// Returns the mode of a directory that is created.
    fn creation_mode(self, is_last: bool) -> Option<u32> {
        match self {
            Self::Make(mode) if is_last => Some(mode),
            Self::Make(_) | Self::MakeNamed => Some(0o755),
            Self::Ours | Self::Claimed | Self::Named => None,
        }
    }

    /// True if a link of this user is followed.
    fn follows_link_of(self, owner: Uid) -> bool {
        let is_named = matches!(self, Self::Named | Self::MakeNamed);
        [Uid::ROOT, caller()].contains(&owner) || is_named && caller() != Uid::ROOT
    }
}

/// Walks a path from the root, checking every directory on it.
pub(super) fn walk_path(path: &Path, walk: Walk) -> FileResult<OwnedFd> {
    let absolute = std::path::absolute(path)?;
    let mut ahead: VecDeque<OsString> = path_parts(&absolute).collect();
    let mut at = open_root()?;
    let mut walked = PathBuf::from("/");
    let mut links = 0;
    while let Some(name) = ahead.pop_front() {
        if name == ".." {
            // The parent was already checked.
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            at = openat(&at, "..", flags, Mode::empty())?;
            walked.pop();
            continue;
        }
        let is_last = ahead.is_empty();
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut next = openat(&at, &name, flags, Mode::empty());
        if let (Some(mode), Err(Errno::NOENT)) = (walk.creation_mode(is_last), &next) {
            create_in(&at, &name, mode)?;
            next = openat(&at, &name, flags, Mode::empty());
        }
        let next =
            next.map_err(|error| FileError::from(error).at_part(&walked.join(&name), &absolute))?;
        if walk == Walk::Claimed {
            check_local_mount(at.as_fd(), next.as_fd())?;
        }
        let meta = fstat(&next)?;
        if FileType::from_raw_mode(meta.st_mode) == FileType::Symlink {
            links += 1;
            if links > MOST_LINKS {
                return Err(Errno::LOOP.into());
            }
            if !walk.follows_link_of(Uid(meta.st_uid)) {
                let why = format!("it is a link that {}", describe_owner(meta.st_uid));
                let fault = match walk {
                    Walk::Named | Walk::MakeNamed => FileFault::Irregular,
                    Walk::Ours | Walk::Make(_) | Walk::Claimed => FileFault::Foreign(meta.st_uid),
                };
                let why = FileError::with_fault(fault, why);
                return Err(why.at_part(&walked.join(&name), &absolute));
            }
            let to = readlinkat(&next, "", Vec::new())?;
            let to = PathBuf::from(OsStr::from_bytes(to.to_bytes()));
            if to.is_absolute() {
                at = open_root()?;
                walked = PathBuf::from("/");
            }
            for name in path_parts(&to).collect::<Vec<_>>().into_iter().rev() {
                ahead.push_front(name);
            }
            continue;
        }
        walked.push(&name);
        if matches!(walk, Walk::Ours | Walk::Make(_)) {
            check_directory(&walked, &meta, is_last)
                .map_err(|why| why.at_part(&walked, &absolute))?;
        }
        at = next;
    }
    Ok(at)
}

/// Creates a directory with exactly this mode, unless another process has created it.
fn create_in(at: &OwnedFd, name: &OsStr, mode: u32) -> FileResult<()> {
    match mkdirat(at, name, Mode::from_raw_mode(mode)) {
        Ok(()) => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let directory = openat(at, name, flags, Mode::empty())?;
            acl::remove_lists(&directory)?;
            // The umask may have removed bits.
            Ok(fchmod(&directory, Mode::from_raw_mode(mode))?)
        }
        Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn open_root() -> FileResult<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, "/", flags, Mode::empty())?)
}

fn path_parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

/// Refuses a directory in which another user could replace the next part of the path.
fn check_directory(directory: &Path, meta: &Stat, is_last: bool) -> FileResult<()> {
    if FileType::from_raw_mode(meta.st_mode) != FileType::Directory {
        return Err(FileError::with_fault(
            FileFault::NotADirectory,
            "it is not a directory",
        ));
    }
    if ![Uid::ROOT, caller()].contains(&Uid(meta.st_uid)) {
        let why = format!("it {}", describe_owner(meta.st_uid));
        return Err(FileError::with_fault(FileFault::Foreign(meta.st_uid), why));
    }
    // In a sticky directory users can replace only their own entries, so the next part decides.
    if meta.st_mode & STICKY != 0 && !is_last {
        return Ok(());
    }
    check_writers(directory, meta)
}

/// Refuses what a user other than root and the caller can write to.
fn check_writers(path: &Path, meta: &Stat) -> FileResult<()> {
    let fault = match FileType::from_raw_mode(meta.st_mode) {
        FileType::Directory => FileFault::OpenDirectory,
        _ => FileFault::WritableByOthers,
    };
    if meta.st_mode & OTHERS_WRITE != 0 {
        return Err(FileError::with_fault(fault, "others can write to it"));
    }
    // Where there is an access control list, the mode has the list's mask in the place of the group.
    let of_group = (meta.st_mode & GROUP_WRITE != 0).then_some(Principal::Group(meta.st_gid));
    for writer in of_group.into_iter().chain(list_writers(path)) {
        if !is_trusted(writer) {
            let who = match writer {
                Principal::User(user) => format!("the user {}", user_name(user)),
                Principal::Group(group) => format!("the group {}", group_name(group)),
            };
            return Err(FileError::with_fault(
                fault,
                format!("{who} can write to it"),
            ));
        }
    }
    Ok(())
}

/// True for root, the caller and groups of the system: on Ubuntu the group syslog can write to /var/log, and often a
/// user's own group to the user's directory.
fn is_trusted(writer: Principal) -> bool {
    match writer {
        Principal::User(user) => [Uid::ROOT, caller()].contains(&user),
        Principal::Group(group) => {
            group < FIRST_USERS_GROUP || group == rustix::process::getegid().as_raw()
        }
    }
}

/// Opens a file to append to it, and makes it if it is not there.
///
/// # Errors
/// One that is no regular file, or a link, or that has a second name, or that belongs to somebody else, or that others can write to, is refused.
pub fn append_privately(path: &Path) -> FileResult<File> {
    open_for_append(path).map_err(|error| error.at(path))
}

fn open_for_append(path: &Path) -> FileResult<File> {
    let (directory, name) = open_parent(path)?;
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::CLOEXEC;
    let opened = openat(directory, name, flags, Mode::RUSR | Mode::WUSR);
    let file = File::from(opened.map_err(|error| match error {
        rustix::io::Errno::LOOP => {
            FileError::with_fault(FileFault::InTheWay, "it is a symbolic link")
        }
        error => error.into(),
    })?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(FileError::with_fault(
            FileFault::InTheWay,
            "it is not a regular file",
        ));
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(FileError::with_fault(
            FileFault::Foreign(metadata.uid()),
            describe_owner(metadata.uid()),
        ));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(FileError::with_fault(
            FileFault::WritableByOthers,
            "others can write to it",
        ));
    }
    // In a directory of theirs users can give names to files that are not theirs.
    if metadata.nlink() > 1 {
        return Err(FileError::with_fault(
            FileFault::InTheWay,
            "it has a second name",
        ));
    }
    Ok(file)
}

/// Fails if a user other than root and the caller could replace the program at this path, with the part of the path
/// that allows it.
pub fn check_trusted_program(program: &Path) -> FileResult<()> {
    let program = fs::canonicalize(program)?;
    let directory = Directory::open(program.parent().unwrap_or(&program))?;
    let name = program.file_name().unwrap_or_default();
    let Some(meta) = directory.stat(name)? else {
        return Err(io::ErrorKind::NotFound.into());
    };
    if ![Uid::ROOT, caller()].contains(&Uid(meta.st_uid)) {
        let why = format!("it {}", describe_owner(meta.st_uid));
        let error = FileError::with_fault(FileFault::Foreign(meta.st_uid), why);
        return Err(error.at(&program));
    }
    check_writers(&program, &meta).map_err(|why| why.at(&program))
}

/// Returns the part of the path to a program that keeps users other than its owner and group from running it.
pub fn part_closed_to_others(program: &Path) -> Option<PathBuf> {
    let program = fs::canonicalize(program).ok()?;
    let is_closed = |part: &Path| fs::metadata(part).is_ok_and(|meta| meta.mode() & 0o001 == 0);
    let mut parts = program.ancestors();
    parts.find(|part| is_closed(part)).map(Path::to_owned)
}
