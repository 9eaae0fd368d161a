//! Opens what belongs to users, and enters no mount of theirs.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;

/// Opens an entry of a directory. Follows no link and enters no mount.
pub(super) fn open_beneath(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    flags: OFlags,
) -> io::Result<OwnedFd> {
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

pub(super) fn foreign_mount() -> io::Error {
    io::Error::new(
        io::ErrorKind::CrossesDevices,
        "somebody has mounted a file system there",
    )
}

/// The types of local file systems.
const LOCAL: [&str; 12] = [
    "bcachefs", "btrfs", "devtmpfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs",
    "xfs", "zfs",
];

/// Refuses to enter a mount that is not a local file system. Both descriptors are `O_PATH`.
pub(super) fn stay_local(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
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

/// Returns the id of the mount that a descriptor is on.
fn mount_of(fd: BorrowedFd<'_>) -> io::Result<String> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    id.map(|id| id.trim().to_owned())
        .ok_or_else(|| io::Error::other("/proc/self/fdinfo does not name the mount"))
}
