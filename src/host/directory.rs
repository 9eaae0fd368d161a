//! Directories by their descriptors, so that no part of a path can be replaced by a link meanwhile.
//!
//! [`Directory::open`] walks from the root and accepts only directories that root or the caller controls. Their entries
//! may belong to a user, as those of mig-mps 0.2: [`Directory::open_child`] and the other methods follow no link and enter no
//! mount, because a user's file system may hang every process that uses it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, fchmod, fchown, fstat,
    mkdirat, openat, openat2, readlinkat, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::acl::{self, Permission};
use super::file_error::{FileFault, describe_owner};
use super::files::Fingerprint;
use super::files::read_limited;
use super::place::check_caller_owns;
use super::trusted_path::{Walk, walk_path};
use super::{Access, EntryKind, FileError, FileResult, Uid, caller};

/// The most mounts that are detached from one entry.
const MAX_DETACHED_MOUNTS: usize = 64;

/// An open directory.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

impl Directory {
    /// Opens a directory that only root and the caller control, like all directories above it. Fails with
    /// `PermissionDenied` if another user could replace a part of the path.
    pub fn open(path: &Path) -> FileResult<Self> {
        Self::open_with(Walk::Ours, path)
    }

    /// Opens such a directory; returns `None` if it does not exist.
    pub fn open_if_there(path: &Path) -> FileResult<Option<Self>> {
        match Self::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Opens such a directory, or creates it with this mode, and missing parents with 0755.
    pub fn open_or_create(path: &Path, mode: u32) -> FileResult<Self> {
        Self::open_with(Walk::Make(mode), path)
    }

    fn open_with(how: Walk, path: &Path) -> FileResult<Self> {
        let fd = walk_path(path, how).map_err(|error| error.at(path))?;
        let path = path.to_owned();
        Ok(Self { fd, path })
    }

    /// Returns the path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns owner, group and mode of the directory.
    pub fn stat_self(&self) -> FileResult<Stat> {
        Ok(fstat(&self.fd)?)
    }

    /// Fails if the directory belongs to another user than root and the caller.
    pub fn check_owner(&self) -> FileResult<()> {
        self.check_owner_among(&[Uid::ROOT, caller()])
    }

    /// Fails if the directory belongs to another user than these.
    pub fn check_owner_among(&self, owners: &[Uid]) -> FileResult<()> {
        let owner = self.stat_self()?.st_uid;
        if owners.contains(&Uid(owner)) {
            return Ok(());
        }
        let why = format!("it {}", describe_owner(owner));
        Err(FileError::new(io::ErrorKind::PermissionDenied, why).at(&self.path))
    }

    /// Opens a subdirectory. Returns `None` if there is none.
    pub fn open_child(&self, name: impl AsRef<OsStr>) -> FileResult<Option<Self>> {
        let name = name.as_ref();
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let fd = self.none_if_absent(name, open_beneath(self.fd.as_fd(), name, flags))?;
        Ok(fd.map(|fd| Self {
            fd,
            path: self.path.join(name),
        }))
    }

    /// Opens or creates a subdirectory of the caller that these users may enter. Refuses an existing one of another owner,
    /// and one that others can write to. Fails for one user where the file system has no access control lists.
    pub fn make_child(&self, name: impl AsRef<OsStr>, access: &Access) -> FileResult<Self> {
        self.make_child_with(name, access, Permission::Enter)
    }

    /// The same, with what a single user may do there.
    pub fn make_child_with(
        &self,
        name: impl AsRef<OsStr>,
        access: &Access,
        to: Permission,
    ) -> FileResult<Self> {
        let name = name.as_ref();
        let fd = make_directory(self.fd.as_fd(), name, access, to)
            .map_err(|error| self.error_at(name, error))?;
        let path = self.path.join(name);
        Ok(Self { fd, path })
    }

    /// Returns owner, type and size of an entry, or `None` if there is none. Links are not followed.
    pub fn stat(&self, name: impl AsRef<OsStr>) -> FileResult<Option<Stat>> {
        let name = name.as_ref();
        let meta = match open_beneath(self.fd.as_fd(), name, OFlags::PATH) {
            Ok(fd) => fstat(fd).map_err(FileError::from),
            // Reading the data of the link itself is safe.
            Err(error) if error.errno() == Some(Errno::LOOP) => {
                statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).map_err(FileError::from)
            }
            Err(error) => Err(error),
        };
        self.none_if_absent(name, meta)
    }

    /// Returns the fingerprint of what is at a path in the directory, whose subdirectories on it only root and the caller
    /// control.
    pub fn fingerprint(&self, path: &Path) -> Option<Fingerprint> {
        let meta = statat(&self.fd, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Fingerprint::from_stat(self.path.join(path), &meta)
    }

    /// True if there is an entry of any type.
    pub fn has_entry(&self, name: impl AsRef<OsStr>) -> bool {
        !matches!(self.stat(name), Ok(None))
    }

    /// Opens a regular file for reading. Returns `None` if there is no entry, and refuses other types.
    pub fn open_file(&self, name: impl AsRef<OsStr>) -> FileResult<Option<File>> {
        self.open_file_with(name, OFlags::RDONLY)
    }

    /// The same with other flags.
    pub fn open_file_with(
        &self,
        name: impl AsRef<OsStr>,
        flags: OFlags,
    ) -> FileResult<Option<File>> {
        let name = name.as_ref();
        self.none_if_absent(name, open_regular(self.fd.as_fd(), name, flags))
    }

    /// Reads a regular file of at most 1 MiB. Returns `None` if there is none.
    pub fn read_file(&self, name: impl AsRef<OsStr>) -> FileResult<Option<Vec<u8>>> {
        let name = name.as_ref();
        match self.open_file(name)? {
            Some(file) => self.none_if_absent(name, read_limited(file)),
            None => Ok(None),
        }
    }

    /// Creates a regular file with this mode, whatever the umask is. Fails if the entry exists.
    pub fn create_file(&self, name: impl AsRef<OsStr>, mode: u32) -> FileResult<File> {
        let name = name.as_ref();
        // A new file is always in the directory itself: there is nothing to follow.
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode);
        let file = openat(&self.fd, name, flags, mode).and_then(|file| {
            fchmod(&file, mode)?;
            Ok(file)
        });
        Ok(File::from(
            file.map_err(|error| self.error_at(name, error))?,
        ))
    }

    /// Replaces a file atomically. A process that is killed meanwhile leaves its new content in `half_made`, or in a file of
    /// that name with a number before it.
    pub fn replace_file(
        &self,
        name: &str,
        half_made: &str,
        content: &[u8],
        mode: u32,
    ) -> FileResult<()> {
        self.free_place(name, EntryKind::File)?;
        let half_made = self.free_unfinished(half_made, EntryKind::File);
        let replaced = self
            .create_file(&half_made, mode)
            .and_then(|mut file| Ok(file.write_all(content)?))
            .map_err(|error| self.error_at(name.as_ref(), error))
            .and_then(|()| self.rename(&half_made, self, name));
        if replaced.is_err() {
            // The disk may be full, and an incomplete file is of no use.
            let _ = self.remove_file(&half_made);
        }
        replaced
    }

    /// Returns the names of the entries, unsorted.
    pub fn entry_names(&self) -> FileResult<Vec<OsString>> {
        read_names(self.fd.as_fd()).map_err(|error| FileError::from(error).at(&self.path))
    }

    /// Returns the target of a link, or `None` if the entry is no link.
    pub fn read_link(&self, name: impl AsRef<OsStr>) -> Option<PathBuf> {
        let to = readlinkat(&self.fd, name.as_ref(), Vec::new()).ok()?;
        Some(PathBuf::from(OsStr::from_bytes(to.to_bytes())))
    }

    /// Creates a link.
    pub fn make_link(&self, to: &Path, name: impl AsRef<OsStr>) -> FileResult<()> {
        let name = name.as_ref();
        symlinkat(to, &self.fd, name).map_err(|error| self.error_at(name, error))
    }

    /// Removes a file or link, or directories without files in its place. Succeeds if it is already gone.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> FileResult<()> {
        let name = name.as_ref();
        match self.remove_entry(name, AtFlags::empty()) {
            Err(_) if self.is_directory(name) => self.free_place(name, EntryKind::File),
            removed => removed,
        }
    }

    /// Removes an empty directory. Succeeds if it is already gone.
    pub fn remove_dir(&self, name: impl AsRef<OsStr>) -> FileResult<()> {
        self.remove_entry(name.as_ref(), AtFlags::REMOVEDIR)
    }

    /// Removes a directory if it is empty.
    pub fn remove_dir_if_empty(&self, name: impl AsRef<OsStr>) -> FileResult<()> {
        match self.remove_dir(name) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            other => other,
        }
    }

    fn remove_entry(&self, name: &OsStr, flags: AtFlags) -> FileResult<()> {
        match unlinkat(&self.fd, name, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(self.error_at(name, error)),
        }
    }

    /// Renames an entry, within this directory or into another.
    pub fn rename(
        &self,
        name: impl AsRef<OsStr>,
        to: &Self,
        other: impl AsRef<OsStr>,
    ) -> FileResult<()> {
        let (name, other) = (name.as_ref(), other.as_ref());
        renameat(&self.fd, name, &to.fd, other).map_err(|error| {
            let error = FileError::from(error);
            let path = self.path.join(name);
            let what = format!(
                "cannot rename {} to {}: {error}",
                path.display(),
                to.path.join(other).display()
            );
            FileError::new(error.kind(), what)
        })
    }

    /// Detaches all file systems that are mounted on an entry. Fails without the permission, or if there are too many.
    pub fn detach_mounts(&self, name: impl AsRef<OsStr>) -> FileResult<()> {
        let name = name.as_ref();
        let on_top = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let path = Path::new(&on_top).join(name);
        for _ in 0..MAX_DETACHED_MOUNTS {
            match self.stat(name) {
                Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                    unmount(&path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
                        .map_err(|_| error)?;
                }
                _ => return Ok(()),
            }
        }
        Err(self.error_at(name, foreign_mount()))
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Adds the path of an entry to an error.
    pub(super) fn error_at(&self, name: &OsStr, error: impl Into<FileError>) -> FileError {
        error.into().at(&self.path.join(name))
    }

    /// Turns `NotFound` into `None`, and adds the path to other errors.
    fn none_if_absent<T>(&self, name: &OsStr, result: FileResult<T>) -> FileResult<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.error_at(name, error)),
        }
    }
}

fn make_directory(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    access: &Access,
    to: Permission,
) -> FileResult<OwnedFd> {
    let (first_mode, mode) = match access {
        Access::Everybody => (0o755, 0o755),
        // Nobody else may enter a new one before it has its group or its list.
        Access::Group(_) => (0o700, 0o750),
        Access::Owner | Access::User(_) => (0o700, 0o700),
    };
    match mkdirat(parent, name, Mode::from_raw_mode(first_mode)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
    let fd = open_beneath(parent, name, flags).map_err(|error| match error.errno() {
        Some(Errno::LOOP) => FileError::with_fault(
            FileFault::InTheWay,
            "it is a symbolic link, which mig-mps does not follow",
        ),
        Some(Errno::NOTDIR) => FileError::with_fault(FileFault::InTheWay, "it is not a directory"),
        _ => error,
    })?;
    let meta = fstat(&fd)?;
    check_caller_owns(&meta)?;
    match access {
        Access::User(user) => {
            acl::grant_access(&fd, *user, to)?;
            return Ok(fd);
        }
        Access::Group(group) if *group != meta.st_gid => {
            fchown(&fd, None, Some(Gid::from_raw(*group)))?;
        }
        Access::Everybody | Access::Owner | Access::Group(_) => {}
    }
    acl::remove_lists(&fd)?;
    // The umask may have removed bits, and the mode of an existing directory may differ.
    fchmod(&fd, Mode::from_raw_mode(mode))?;
    Ok(fd)
}

/// Opens a regular file. Refuses other types.
fn open_regular(directory: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> FileResult<File> {
    // A FIFO without a reader or a file with a lease must not block us.
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = open_beneath(directory, name, flags).map_err(|error| match error.errno() {
        Some(Errno::LOOP) => FileError::with_fault(
            FileFault::InTheWay,
            "it is a symbolic link, which mig-mps does not follow",
        ),
        Some(Errno::NXIO | Errno::ISDIR) => {
            FileError::with_fault(FileFault::InTheWay, "it is not a regular file")
        }
        _ => error,
    })?;
    if FileType::from_raw_mode(fstat(&fd)?.st_mode) != FileType::RegularFile {
        return Err(FileError::with_fault(
            FileFault::InTheWay,
            "it is not a regular file",
        ));
    }
    Ok(File::from(fd))
}

fn read_names(directory: BorrowedFd<'_>) -> rustix::io::Result<Vec<OsString>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let list = openat(directory, ".", flags, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::new(list)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Opens an entry of a directory. Follows no link and enters no mount.
pub(super) fn open_beneath(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    flags: OFlags,
) -> FileResult<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match openat2(dir, name, flags, Mode::empty(), how) {
        Ok(fd) => Ok(fd),
        Err(Errno::XDEV) => Err(foreign_mount()),
        // Before Linux 5.6, and in containers whose filter forbids it.
        Err(Errno::NOSYS | Errno::PERM) => open_by_steps(dir, name, flags),
        Err(error) => Err(error.into()),
    }
}

/// The same in two steps: an `O_PATH` descriptor shows the type of the entry and its mount.
fn open_by_steps(dir: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> FileResult<OwnedFd> {
    if Path::new(name).components().count() != 1 || name == ".." {
        return Err(Errno::XDEV.into());
    }
    let seen = openat(
        dir,
        name,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    if mount_of(seen.as_fd())? != mount_of(dir)? {
        return Err(foreign_mount());
    }
    let kind = FileType::from_raw_mode(fstat(&seen)?.st_mode);
    match kind {
        FileType::Symlink => return Err(Errno::LOOP.into()),
        FileType::Directory => {}
        _ if flags.contains(OFlags::DIRECTORY) => return Err(Errno::NOTDIR.into()),
        _ => {}
    }
    if flags.contains(OFlags::PATH) {
        return Ok(seen);
    }
    let path = format!("/proc/self/fd/{}", seen.as_raw_fd());
    Ok(openat(CWD, path, flags - OFlags::NOFOLLOW, Mode::empty())?)
}

pub(super) fn foreign_mount() -> FileError {
    FileError::new(
        io::ErrorKind::CrossesDevices,
        "another file system is mounted there",
    )
}

/// The types of local file systems.
const LOCAL_FILE_SYSTEMS: [&str; 12] = [
    "bcachefs", "btrfs", "devtmpfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs",
    "xfs", "zfs",
];

/// Refuses to enter a mount that is not a local file system. Both descriptors are `O_PATH`.
pub(super) fn check_local_mount(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> FileResult<()> {
    let mount = mount_of(to)?;
    if mount == mount_of(from)? {
        return Ok(());
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let kind = mounts
        .lines()
        .filter_map(|line| line.split_once(" - "))
        .find(|(place, _)| place.split(' ').next() == Some(&mount))
        .and_then(|(_, system)| system.split(' ').next());
    match kind {
        Some(kind) if LOCAL_FILE_SYSTEMS.contains(&kind) => Ok(()),
        _ => Err(foreign_mount()),
    }
}

/// Returns the id of the mount that a descriptor is on.
fn mount_of(fd: BorrowedFd<'_>) -> FileResult<String> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    info.lines()
        .find_map(|line| line.strip_prefix("mnt_id:"))
        .map(|id| id.trim().to_owned())
        .ok_or_else(|| FileError::other("/proc/self/fdinfo does not list the mount"))
}

/// The deepest level at which directories are removed in place. Each level keeps a descriptor open.
const MAX_REMOVAL_DEPTH: u32 = 64;

impl Directory {
    /// Removes a directory with everything in it, until a deadline. Detaches file systems that are mounted there. The
    /// owner may add entries meanwhile, and may have nested directories to any depth.
    pub fn remove_all(&self, name: impl AsRef<OsStr>, until: Instant) -> FileResult<()> {
        let name = name.as_ref();
        let mut removal = Removal {
            top: self,
            until,
            name,
            moved: 0,
            pending: vec![name.to_owned()],
        };
        while let Some(next) = removal.pending.pop() {
            match removal.remove_tree(self, &next, MAX_REMOVAL_DEPTH) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                    removal.pending.push(next);
                }
                other => other?,
            }
        }
        Ok(())
    }
}

/// The removal of one entry of a directory with everything in it.
struct Removal<'a> {
    top: &'a Directory,
    until: Instant,
    name: &'a OsStr,
    /// The number of directories that were moved up from below [`MAX_REMOVAL_DEPTH`].
    moved: u64,
    /// The remaining entries of `top` to remove.
    pending: Vec<OsString>,
}

impl Removal<'_> {
    fn remove_tree(&mut self, parent: &Directory, name: &OsStr, depth: u32) -> FileResult<()> {
        if Instant::now() > self.until {
            let path = self.top.path().join(self.name);
            let why = "it has too many files to remove in time; run the same command again to remove the rest";
            let error = FileError::new(io::ErrorKind::TimedOut, why);
            return Err(error.at(&path));
        }
        parent.detach_mounts(name)?;
        let is_directory = match parent.stat(name)? {
            Some(meta) => FileType::from_raw_mode(meta.st_mode) == FileType::Directory,
            None => return Ok(()),
        };
        if !is_directory {
            return parent.remove_file(name);
        }
        if depth == 0 {
            return self.move_up(parent, name);
        }
        if let Some(child) = parent.open_child(name)? {
            for entry in child.entry_names()? {
                self.remove_tree(&child, &entry, depth - 1)?;
            }
        }
        parent.remove_dir(name)
    }

    /// Moves a directory to the top, to be removed there.
    fn move_up(&mut self, parent: &Directory, name: &OsStr) -> FileResult<()> {
        loop {
            self.moved += 1;
            let mut free = self.name.to_owned();
            free.push(format!(".deep-{}", self.moved));
            if !self.top.has_entry(&free) {
                parent.rename(name, self.top, &free)?;
                self.pending.push(free);
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_removal_stops_at_its_deadline() {
        let path = std::env::temp_dir().join(format!("mig-mps-removal-{}", std::process::id()));
        std::fs::create_dir_all(path.join("hers/a/b")).unwrap();
        let directory = Directory::open(&path).unwrap();
        let now = Instant::now();
        let error = directory
            .remove_all("hers", now.checked_sub(Duration::from_secs(1)).unwrap())
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(path.join("hers/a/b").exists());
        directory
            .remove_all("hers", now + Duration::from_secs(60))
            .unwrap();
        assert!(!path.join("hers").exists());
        std::fs::remove_dir(&path).unwrap();
    }
}
