use std::fs::File;
use std::io::{self, Read};

use rustix::process::{Flock, FlockOffsetType, FlockType, fcntl_getlk};

use super::Daemon;
use super::daemon::{LOCK_FILE, PID_FILE};
use crate::host::{Directory, Pid};

/// Who holds the lock of a daemon's pipe directory.
///
/// That tells when a start is complete, and of a daemon that nobody recorded. It does not tell whether a recorded
/// daemon lives: in a user's directory the user may hold any lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockHolder {
    /// Nobody.
    Nobody,
    /// This process, or one that the daemon's pid file names.
    Process(Pid),
    /// A process of a pid namespace that cannot be seen from here.
    Unseen,
    /// The caller may not look.
    Hidden,
}

impl Daemon {
    /// Asks the kernel who holds the lock. Opens no control session, takes no lock, and leaves nothing in the logs.
    pub fn lock_holder(&self) -> LockHolder {
        match self.pipe_directory() {
            Ok(Some(pipe)) => holder(&pipe).unwrap_or_else(|error| hidden(&error)),
            Ok(None) => LockHolder::Nobody,
            Err(error) => hidden(&error),
        }
    }
}

fn hidden(error: &io::Error) -> LockHolder {
    if error.kind() == io::ErrorKind::PermissionDenied {
        LockHolder::Hidden
    } else {
        LockHolder::Nobody
    }
}

fn holder(pipe: &Directory) -> io::Result<LockHolder> {
    match pipe.open_file(LOCK_FILE)? {
        Some(lock) => Ok(record_lock(&lock)),
        // From driver 615 on the daemon locks its pid file by flock(2), which nobody can ask about without taking it
        // and so disturbing a start.
        None => pid_file(pipe),
    }
}

fn record_lock(file: &File) -> LockHolder {
    let wanted = Flock {
        start: 0,
        length: 0,
        pid: None,
        typ: FlockType::WriteLock,
        offset_type: FlockOffsetType::Set,
    };
    match fcntl_getlk(file, &wanted) {
        Ok(None) => LockHolder::Nobody,
        Ok(Some(lock)) => match lock.pid.map(|pid| pid.as_raw_nonzero().get()) {
            Some(pid) if pid > 0 => LockHolder::Process(Pid(pid.unsigned_abs())),
            _ => LockHolder::Unseen,
        },
        Err(_) => LockHolder::Hidden,
    }
}

fn pid_file(pipe: &Directory) -> io::Result<LockHolder> {
    /// More than the largest pid has digits.
    const MOST: u64 = 16;
    let Some(file) = pipe.open_file(PID_FILE)? else {
        return Ok(LockHolder::Nobody);
    };
    let mut text = String::new();
    file.take(MOST).read_to_string(&mut text)?;
    let pid = text.trim().parse().map(Pid);
    Ok(pid.map_or(LockHolder::Nobody, LockHolder::Process))
}
