//! Directories that are worked in by their descriptors, so that nobody can swap one for a link on the way.
//!
//! [`Directory::open`] walks from the root and accepts only what root or the caller controls. What lies in such
//! a directory may belong to a user: [`Directory::child`] and the rest follow no link and enter no mount, since a
//! user's file system may hang every process that touches it.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid as RawUid, fchmod,
    fstat, mkdirat, openat, openat2, readlinkat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::files::read_limited;
use super::{Uid, caller, group_name, in_path, user_name};

/// How many links a path may lead through, as in the kernel.
const MOST_LINKS: usize = 40;

/// How many mounts may lie on top of each other where ours are expected to be none.
const MOST_MOUNTS: usize = 64;

/// How deep directories may be nested that are removed. Each level keeps a descriptor open.
const DEEPEST: u32 = 64;

/// Groups below this number are the system's (login.defs, `SYS_GID_MAX`).
const FIRST_USERS_GROUP: u32 = 1000;

/// Others may write.
const OTHERS_WRITE: u32 = 0o002;
/// The group may write.
const GROUP_WRITES: u32 = 0o020;
/// Users may rename and remove only their own entries.
const STICKY: u32 = 0o1000;

/// An open directory.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

impl Directory {
    /// Opens a directory that only root and the caller control, and everything above it.
    ///
    /// Fails with `PermissionDenied` where somebody else could replace a part of the path.
    pub fn open(path: &Path) -> io::Result<Self> {
        walk(path, Walk::Ours).map_err(|error| in_path(path, &error))
    }

    /// Opens such a directory, or makes it with this mode, and missing parents with 0755.
    pub fn make(path: &Path, mode: u32) -> io::Result<Self> {
        walk(path, Walk::Make(mode)).map_err(|error| in_path(path, &error))
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its owner, group and mode.
    pub fn stat_self(&self) -> io::Result<Stat> {
        Ok(fstat(&self.fd)?)
    }

    /// A directory in it; `None` if there is none.
    pub fn child(&self, name: impl AsRef<OsStr>) -> io::Result<Option<Self>> {
        let name = name.as_ref();
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let fd = self.named(name, open_here(self.fd.as_fd(), name, flags))?;
        Ok(fd.map(|fd| Self {
            fd,
            path: self.path.join(name),
        }))
    }

    /// A directory in it that is the caller's, made with this mode if it is not there.
    pub fn make_child(&self, name: impl AsRef<OsStr>, mode: u32) -> io::Result<Self> {
        self.make_child_of(name, mode, caller(), None)
    }

    /// A directory in it that is `owner`'s and, where one is given, `group`'s. Made or not, it has this mode
    /// afterwards. One of another owner is refused, and one of the caller's that others can write to: another
    /// owner may have let them, and must not be able to have a start refused. Only root makes directories for others.
    pub fn make_child_of(
        &self,
        name: impl AsRef<OsStr>,
        mode: u32,
        owner: Uid,
        group: Option<u32>,
    ) -> io::Result<Self> {
        let name = name.as_ref();
        let make = || {
            let is_new = match mkdirat(&self.fd, name, Mode::from_raw_mode(0o700)) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(error) => return Err(error.into()),
            };
            let fd = open_here(
                self.fd.as_fd(),
                name,
                OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK,
            )?;
            let meta = fstat(&fd)?;
            if meta.st_uid != owner.0 {
                if !is_new {
                    return Err(refused(format!("it {}", belongs_to(meta.st_uid))));
                }
                rustix::fs::fchown(&fd, Some(RawUid::from_raw(owner.0)), None)?;
            } else if !is_new && owner == caller() && meta.st_mode & OTHERS_WRITE != 0 {
                return Err(refused("others can write to it"));
            }
            if let Some(group) = group.filter(|group| *group != meta.st_gid) {
                rustix::fs::fchown(&fd, None, Some(Gid::from_raw(group)))?;
            }
            // The umask may have taken bits away, and who may enter may have changed.
            fchmod(&fd, Mode::from_raw_mode(mode))?;
            Ok(fd)
        };
        let path = self.path.join(name);
        let fd = make().map_err(|error: io::Error| in_path(&path, &error))?;
        Ok(Self { fd, path })
    }

    /// Owner, kind and size of what lies there under a name; `None` if nothing does. Links are not followed.
    pub fn stat(&self, name: impl AsRef<OsStr>) -> io::Result<Option<Stat>> {
        let name = name.as_ref();
        let meta = || match open_here(self.fd.as_fd(), name, OFlags::PATH) {
            Ok(fd) => Ok(fstat(fd)?),
            // A link is no entry into anything: its own data is safe to read.
            Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
                Ok(statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?)
            }
            Err(error) => Err(error),
        };
        self.named(name, meta())
    }

    /// True if something lies there under a name, whatever it is.
    pub fn has(&self, name: impl AsRef<OsStr>) -> bool {
        !matches!(self.stat(name), Ok(None))
    }

    /// Opens a regular file for reading; `None` if nothing lies there. Anything else is refused.
    pub fn open_file(&self, name: impl AsRef<OsStr>) -> io::Result<Option<File>> {
        self.open_file_with(name, OFlags::RDONLY)
    }

    /// The same with other flags.
    pub fn open_file_with(
        &self,
        name: impl AsRef<OsStr>,
        flags: OFlags,
    ) -> io::Result<Option<File>> {
        let name = name.as_ref();
        let open = || {
            // A FIFO without a reader and a file with a lease must not hold us up.
            let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
            let fd = open_here(self.fd.as_fd(), name, flags).map_err(|error| {
                let is = |errno: Errno| error.raw_os_error() == Some(errno.raw_os_error());
                if is(Errno::LOOP) {
                    refused("it is a link: not followed")
                } else if is(Errno::NXIO) || is(Errno::ISDIR) {
                    refused("it is no regular file")
                } else {
                    error
                }
            })?;
            if FileType::from_raw_mode(fstat(&fd)?.st_mode) != FileType::RegularFile {
                return Err(refused("it is no regular file"));
            }
            Ok(File::from(fd))
        };
        self.named(name, open())
    }

    /// Reads a whole regular file of at most 1 MiB; `None` if there is none.
    pub fn read_file(&self, name: impl AsRef<OsStr>) -> io::Result<Option<Vec<u8>>> {
        let name = name.as_ref();
        match self.open_file(name)? {
            Some(file) => self.named(name, read_limited(file)),
            None => Ok(None),
        }
    }

    /// Makes a new regular file; one that is there already is an error.
    pub fn create_file(&self, name: impl AsRef<OsStr>, mode: u32) -> io::Result<File> {
        let name = name.as_ref();
        // A new file lies in the directory itself: there is nothing to follow.
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.fd, name, flags, Mode::from_raw_mode(mode));
        file.map(File::from)
            .map_err(|error| in_path(&self.path.join(name), &error.into()))
    }

    /// The names in it, in no order.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let read = || {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let list = openat(&self.fd, ".", flags, Mode::empty())?;
            let mut names = Vec::new();
            for entry in Dir::new(list)? {
                let entry = entry?;
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if name != "." && name != ".." {
                    names.push(name.to_owned());
                }
            }
            Ok(names)
        };
        read().map_err(|error: Errno| in_path(&self.path, &error.into()))
    }

    /// Where a link leads; `None` if no link lies there.
    pub fn link(&self, name: impl AsRef<OsStr>) -> Option<PathBuf> {
        let to = readlinkat(&self.fd, name.as_ref(), Vec::new()).ok()?;
        Some(PathBuf::from(OsStr::from_bytes(to.to_bytes())))
    }

    /// Makes a link.
    pub fn make_link(&self, to: &Path, name: impl AsRef<OsStr>) -> io::Result<()> {
        let name = name.as_ref();
        let made = rustix::fs::symlinkat(to, &self.fd, name);
        made.map_err(|error| in_path(&self.path.join(name), &error.into()))
    }

    /// Removes a file or link. One that is gone is as good as removed.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        self.remove(name.as_ref(), AtFlags::empty())
    }

    /// Removes an empty directory. One that is gone is as good as removed.
    pub fn remove_dir(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        self.remove(name.as_ref(), AtFlags::REMOVEDIR)
    }

    /// Removes a directory if it is empty.
    pub fn remove_dir_if_empty(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        match self.remove_dir(name) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            other => other,
        }
    }

    fn remove(&self, name: &OsStr, flags: AtFlags) -> io::Result<()> {
        match unlinkat(&self.fd, name, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(in_path(&self.path.join(name), &error.into())),
        }
    }

    /// Removes a directory with all that is in it. File systems that are mounted there are detached.
    ///
    /// What is nested more deeply than descriptors can be kept open is moved up beside the directory and removed there.
    pub fn remove_all(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        let name = name.as_ref();
        let mut deep = Deep {
            beside: self,
            name,
            moved: VecDeque::new(),
            count: 0,
        };
        self.remove_all_within(name, DEEPEST, &mut deep)?;
        while let Some(moved) = deep.moved.pop_front() {
            self.remove_all_within(&moved, DEEPEST, &mut deep)?;
        }
        Ok(())
    }

    fn remove_all_within(&self, name: &OsStr, depth: u32, deep: &mut Deep<'_>) -> io::Result<()> {
        self.detach_mounts(name)?;
        let is_directory = match self.stat(name)? {
            Some(meta) => FileType::from_raw_mode(meta.st_mode) == FileType::Directory,
            None => return Ok(()),
        };
        if !is_directory {
            return self.remove_file(name);
        }
        if depth == 0 {
            return deep.take(self, name);
        }
        if let Some(child) = self.child(name)? {
            for entry in child.names()? {
                child.remove_all_within(&entry, depth - 1, deep)?;
            }
        }
        self.remove_dir(name)
    }

    /// Gives an entry another name, here or in another directory.
    pub fn rename(
        &self,
        name: impl AsRef<OsStr>,
        to: &Self,
        other: impl AsRef<OsStr>,
    ) -> io::Result<()> {
        let (name, other) = (name.as_ref(), other.as_ref());
        renameat(&self.fd, name, &to.fd, other).map_err(|error| {
            let error = io::Error::from(error);
            let path = self.path.join(name);
            let what = format!(
                "cannot rename {} to {}: {error}",
                path.display(),
                to.path.join(other).display()
            );
            io::Error::new(error.kind(), what)
        })
    }

    /// Detaches every file system that somebody has mounted on an entry. Fails where the caller may not, or where
    /// they do not come to an end.
    pub fn detach_mounts(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        let name = name.as_ref();
        let on_top = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let path = Path::new(&on_top).join(name);
        for _ in 0..MOST_MOUNTS {
            match self.stat(name) {
                Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                    unmount(&path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
                        .map_err(|_| error)?;
                }
                _ => return Ok(()),
            }
        }
        Err(in_path(&self.path.join(name), &foreign_mount()))
    }

    /// The descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// `None` for what is not there, and a path for what cannot be opened.
    fn named<T>(&self, name: &OsStr, result: io::Result<T>) -> io::Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(in_path(&self.path.join(name), &error)),
        }
    }
}

/// Directories that are moved up while a directory above them is removed.
struct Deep<'a> {
    /// Where they are moved to, and the name of what is removed there.
    beside: &'a Directory,
    name: &'a OsStr,
    moved: VecDeque<OsString>,
    count: u16,
}

impl Deep<'_> {
    /// Moves a directory beside what is removed. Its owner may make more of them all the time: there is an end to it.
    fn take(&mut self, from: &Directory, name: &OsStr) -> io::Result<()> {
        loop {
            let Some(count) = self.count.checked_add(1) else {
                return Err(in_path(
                    &self.beside.path.join(self.name),
                    &refused("its directories are nested too deeply"),
                ));
            };
            self.count = count;
            let mut free = self.name.to_owned();
            free.push(format!(".deep.{count}"));
            if !self.beside.has(&free) {
                from.rename(name, self.beside, &free)?;
                self.moved.push_back(free);
                return Ok(());
            }
        }
    }
}

/// Device and inode of what lies at a path that somebody else chose; `None` if nothing does.
///
/// Follows no link of a user's, and enters no file system that may hang: a user's FUSE, a server that is gone.
pub fn claimed(path: &Path) -> io::Result<Option<(u64, u64)>> {
    let found = walk(path, Walk::Claimed).and_then(|found| found.stat_self());
    match found {
        Ok(meta) => Ok(Some((meta.st_dev, meta.st_ino))),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(in_path(path, &error)),
    }
}

fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

/// What is expected of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Walk {
    /// Only root and the caller control it.
    Ours,
    /// The same, and missing directories are made, the last one with this mode.
    Make(u32),
    /// It is anybody's, and may lead anywhere.
    Claimed,
}

/// Walks a path from the root, checking every directory on it.
fn walk(path: &Path, walk: Walk) -> io::Result<Directory> {
    let absolute = std::path::absolute(path)?;
    let mut left: VecDeque<OsString> = names(&absolute).collect();
    let mut at = root()?;
    let mut walked = PathBuf::from("/");
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if name == ".." {
            // The parent has been checked on the way here.
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            at = openat(&at, "..", flags, Mode::empty())?;
            walked.pop();
            continue;
        }
        let is_last = left.is_empty();
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut next = openat(&at, &name, flags, Mode::empty());
        if let (Walk::Make(mode), Err(Errno::NOENT)) = (walk, &next) {
            make_in(&at, &name, if is_last { mode } else { 0o755 })?;
            next = openat(&at, &name, flags, Mode::empty());
        }
        let next = next.map_err(|error| of_part(&walked.join(&name), &absolute, error.into()))?;
        if walk == Walk::Claimed {
            stay_local(at.as_fd(), next.as_fd())?;
        }
        let meta = fstat(&next)?;
        if FileType::from_raw_mode(meta.st_mode) == FileType::Symlink {
            links += 1;
            if links > MOST_LINKS {
                return Err(Errno::LOOP.into());
            }
            if ![Uid::ROOT, caller()].contains(&Uid(meta.st_uid)) {
                let why = refused(format!("it is a link that {}", belongs_to(meta.st_uid)));
                return Err(of_part(&walked.join(&name), &absolute, why));
            }
            let to = readlinkat(&next, "", Vec::new())?;
            let to = PathBuf::from(OsStr::from_bytes(to.to_bytes()));
            if to.is_absolute() {
                at = root()?;
                walked = PathBuf::from("/");
            }
            for name in names(&to).collect::<Vec<_>>().into_iter().rev() {
                left.push_front(name);
            }
            continue;
        }
        walked.push(&name);
        if walk != Walk::Claimed {
            check(&meta, is_last).map_err(|why| of_part(&walked, &absolute, why))?;
        }
        at = next;
    }
    Ok(Directory {
        fd: at,
        path: path.to_owned(),
    })
}

/// Makes a directory with exactly this mode; another process may have made it first.
fn make_in(at: &OwnedFd, name: &OsStr, mode: u32) -> io::Result<()> {
    match mkdirat(at, name, Mode::from_raw_mode(mode)) {
        Ok(()) => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let directory = openat(at, name, flags, Mode::empty())?;
            // The umask may have taken bits away.
            Ok(fchmod(&directory, Mode::from_raw_mode(mode))?)
        }
        Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn root() -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, "/", flags, Mode::empty())?)
}

fn names(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

/// Refuses a directory in which somebody else could replace the next part of a path.
fn check(meta: &Stat, is_last: bool) -> io::Result<()> {
    if FileType::from_raw_mode(meta.st_mode) != FileType::Directory {
        return Err(refused("it is not a directory"));
    }
    if ![Uid::ROOT, caller()].contains(&Uid(meta.st_uid)) {
        return Err(refused(format!("it {}", belongs_to(meta.st_uid))));
    }
    // In a sticky directory nobody can replace what is not theirs: the next part counts.
    if meta.st_mode & STICKY != 0 && !is_last {
        return Ok(());
    }
    if meta.st_mode & OTHERS_WRITE != 0 {
        return Err(refused("others can write to it"));
    }
    // Ubuntu's /var/log is writable by the system group syslog, and many a home by its user's own group.
    let is_trusted =
        |group: u32| group < FIRST_USERS_GROUP || group == rustix::process::getegid().as_raw();
    if meta.st_mode & GROUP_WRITES != 0 && !is_trusted(meta.st_gid) {
        let group = group_name(meta.st_gid);
        return Err(refused(format!("the group {group} can write to it")));
    }
    Ok(())
}

/// Names the part of a path that an error is about, unless that is all of it.
fn of_part(part: &Path, whole: &Path, error: io::Error) -> io::Error {
    if part == whole {
        error
    } else {
        in_path(part, &error)
    }
}

fn belongs_to(uid: u32) -> String {
    format!("belongs to {}", user_name(Uid(uid)))
}

fn refused(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why.into())
}

fn foreign_mount() -> io::Error {
    io::Error::new(
        io::ErrorKind::CrossesDevices,
        "somebody has mounted a file system there",
    )
}

/// Opens an entry of a directory without following a link or entering a mount.
fn open_here(dir: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match openat2(dir, name, flags, Mode::empty(), how) {
        Ok(fd) => Ok(fd),
        Err(Errno::XDEV) => Err(foreign_mount()),
        // Before Linux 5.6, and where a container's filter forbids it.
        Err(Errno::NOSYS | Errno::PERM) => open_by_steps(dir, name, flags),
        Err(error) => Err(error.into()),
    }
}

/// The same in two steps: a descriptor that opens nothing yet shows what lies there, and on which mount.
fn open_by_steps(dir: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> io::Result<OwnedFd> {
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

/// The file systems that need nobody else to answer.
const LOCAL: [&str; 12] = [
    "bcachefs", "btrfs", "devtmpfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs",
    "xfs", "zfs",
];

/// Refuses to go on in a mount that is not on a local file system. The descriptors have opened nothing yet.
fn stay_local(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    let mount = mount_of(to)?;
    if mount == mount_of(from)? {
        return Ok(());
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let kind = mounts.lines().find_map(|line| {
        let (place, system) = line.split_once(" - ")?;
        let is_it = place.split(' ').next() == Some(&mount);
        is_it.then(|| system.split(' ').next())?
    });
    if kind.is_some_and(|kind| LOCAL.contains(&kind)) {
        return Ok(());
    }
    Err(foreign_mount())
}

/// The mount that a descriptor is on.
fn mount_of(fd: BorrowedFd<'_>) -> io::Result<String> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    id.map(|id| id.trim().to_owned())
        .ok_or_else(|| io::Error::other("/proc/self/fdinfo does not name the mount"))
}
