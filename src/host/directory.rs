//! Directories that are worked in by their descriptors, so that nobody can swap one for a link on the way.
//!
//! [`Directory::open`] walks from the root and accepts only what root or the caller controls. What lies in such
//! a directory may belong to a user: [`Directory::child`] and the rest follow no link and enter no mount, since a
//! user's file system may hang every process that touches it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Uid as RawUid, fchmod, fstat, mkdirat, openat,
    readlinkat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::files::read_limited;
use super::mounts::foreign_mount;
use super::open_beneath::open_beneath;
use super::path_error::{belongs_to, refused};
use super::walk::{OTHERS_WRITE, Walk, walk};
use super::{Uid, caller, in_path};

/// How many mounts may lie on top of each other where ours are expected to be none.
const MOST_MOUNTS: usize = 64;

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
        Self::at(path, Walk::Ours)
    }

    /// Opens such a directory, or makes it with this mode, and missing parents with 0755.
    pub fn make(path: &Path, mode: u32) -> io::Result<Self> {
        Self::at(path, Walk::Make(mode))
    }

    fn at(path: &Path, how: Walk) -> io::Result<Self> {
        let fd = walk(path, how).map_err(|error| in_path(path, &error))?;
        Ok(Self {
            fd,
            path: path.to_owned(),
        })
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
        let fd = self.named(name, open_beneath(self.fd.as_fd(), name, flags))?;
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
        // Nobody else may enter before the directory is its owner's; the caller's own never refuses a reader.
        let is_callers = owner == caller() && group.is_none();
        let first_mode = if is_callers { mode } else { 0o700 };
        let make = || {
            let is_new = match mkdirat(&self.fd, name, Mode::from_raw_mode(first_mode)) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(error) => return Err(error.into()),
            };
            let fd = open_beneath(
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
        let meta = || match open_beneath(self.fd.as_fd(), name, OFlags::PATH) {
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
            let fd = open_beneath(self.fd.as_fd(), name, flags).map_err(|error| {
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
