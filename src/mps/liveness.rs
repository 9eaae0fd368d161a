use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::process::{Flock, FlockOffsetType, FlockType, fcntl_getlk};

use super::Daemon;
use super::daemon::LOCK_FILE;
use crate::host::Pid;

/// Whether a daemon lives, told by who holds the lock on its lock file. Files that exist prove
/// nothing: five stay behind when a daemon is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// Nobody holds the lock.
    Dead,
    /// This process does.
    Held(Pid),
    /// A process does that cannot be named from here (of another pid namespace).
    HeldUnseen,
    /// The caller may not look.
    Hidden,
}

impl Daemon {
    /// Asks the kernel who holds the lock. Opens no control session and leaves no trace in the logs.
    pub fn liveness(&self) -> Liveness {
        look(&self.pipe.join(LOCK_FILE))
    }
}

fn look(path: &Path) -> Liveness {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    let file = match file {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Liveness::Hidden;
        }
        Err(_) => return Liveness::Dead,
    };
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return Liveness::Dead;
    }
    holder(&file)
}

fn holder(file: &File) -> Liveness {
    let wanted = Flock {
        start: 0,
        length: 0,
        pid: None,
        typ: FlockType::WriteLock,
        offset_type: FlockOffsetType::Set,
    };
    match fcntl_getlk(file, &wanted) {
        Ok(None) => Liveness::Dead,
        Ok(Some(lock)) => match lock.pid.map(|pid| pid.as_raw_nonzero().get()) {
            Some(pid) if pid > 0 => Liveness::Held(Pid(pid.unsigned_abs())),
            _ => Liveness::HeldUnseen,
        },
        Err(_) => Liveness::Hidden,
    }
}
