//! The lock of a control daemon: who holds it, and whether the start is complete.

use std::fs::File;
use std::io::{self, Read};

use rustix::process::{Flock, FlockType, fcntl_getlk};

use super::Daemon;
use super::pipe_files::{LOCK_FILE, PID_FILE};
use crate::host::{Directory, Pid};

/// The holder of the lock of a daemon's pipe directory.
///
/// It shows that a start is complete, and reveals an unrecorded daemon. It does not prove that a recorded daemon is
/// alive: in a user's directory the user may hold any lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockHolder {
    Nobody,
    /// A process, or the one in the daemon's pid file.
    Process(Pid),
    /// A process in another pid namespace.
    Unseen,
    /// It cannot be read.
    Hidden,
}

impl Daemon {
    /// Asks the kernel for the holder of the lock. Opens no control session, takes no lock and adds nothing to the logs.
    pub fn lock_holder(&self) -> LockHolder {
        let holder = self.pipe_directory().and_then(|pipe| match pipe {
            Some(pipe) => holder(&pipe),
            None => Ok(LockHolder::Nobody),
        });
        match holder {
            Ok(holder) => holder,
            Err(error) if is_replaced(&error) => LockHolder::Nobody,
            Err(_) => LockHolder::Hidden,
        }
    }
}

/// True if something else is in the place of the directory: a file, or a file system that is mounted there.
fn is_replaced(error: &io::Error) -> bool {
    use io::ErrorKind::{CrossesDevices, NotADirectory, NotFound};
    matches!(error.kind(), CrossesDevices | NotADirectory | NotFound)
}

fn holder(pipe: &Directory) -> io::Result<LockHolder> {
    match pipe.open_file(LOCK_FILE)? {
        Some(lock) => Ok(record_lock(&lock)),
        // From driver 615 on the daemon locks its pid file with flock(2). Such a lock can only be tested by taking it,
        // which would disturb a start.
        None => pid_file(pipe),
    }
}

fn record_lock(file: &File) -> LockHolder {
    match fcntl_getlk(file, &Flock::from(FlockType::WriteLock)) {
        Ok(None) => LockHolder::Nobody,
        Ok(Some(lock)) => match lock.pid.map(|pid| pid.as_raw_nonzero().get()) {
            Some(pid) if pid > 0 => LockHolder::Process(Pid(pid.unsigned_abs())),
            _ => LockHolder::Unseen,
        },
        Err(_) => LockHolder::Hidden,
    }
}

fn pid_file(pipe: &Directory) -> io::Result<LockHolder> {
    /// More digits than the largest pid has.
    const MOST: u64 = 16;
    let Some(file) = pipe.open_file(PID_FILE)? else {
        return Ok(LockHolder::Nobody);
    };
    let mut text = String::new();
    file.take(MOST).read_to_string(&mut text)?;
    let pid = text.trim().parse().map(Pid);
    Ok(pid.map_or(LockHolder::Nobody, LockHolder::Process))
}
