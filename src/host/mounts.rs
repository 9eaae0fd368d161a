use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

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
pub(super) fn mount_of(fd: BorrowedFd<'_>) -> io::Result<String> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    id.map(|id| id.trim().to_owned())
        .ok_or_else(|| io::Error::other("/proc/self/fdinfo does not name the mount"))
}
