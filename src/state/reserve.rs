//! Space that root keeps free for the next change: a user can fill the file system of the run directory through her pipe
//! directory.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};

use super::run_dir::{RESERVE, RunDir};
use crate::host::{Directory, Uid, caller};

/// The number of files, since a file system limits that as well, and the bytes of each: together a journal, and a record
/// for each of 56 devices.
const FILES: u32 = 16;
const BYTES_EACH: u64 = 16 << 10;

/// The time for removing the files.
const LIMIT: Duration = Duration::from_secs(1);

/// True for the error of a write for which there is no room.
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    )
}

impl RunDir {
    /// Keeps the reserve while there are devices, and removes it after the last one. A full disk has none.
    pub fn keep_reserve(&self) {
        let Ok(directory) = self.open() else { return };
        let is_used = !self.records().0.is_empty();
        if !is_used || (caller() == Uid::ROOT && make(&directory).is_err()) {
            let _ = remove(&directory);
        }
    }

    /// Frees the reserve; returns true if there was one.
    pub fn give_up_reserve(&self) -> bool {
        let given_up = || {
            let directory = self.open()?;
            let is_there = directory.stat(RESERVE)?.is_some();
            remove(&directory)?;
            io::Result::Ok(is_there)
        };
        given_up().unwrap_or(false)
    }
}

fn make(directory: &Directory) -> io::Result<()> {
    let is_new = directory.stat(RESERVE)?.is_none();
    let (bytes, files) = directory.room()?;
    if is_new && (bytes < 2 * u64::from(FILES) * BYTES_EACH || files < 2 * u64::from(FILES)) {
        // It is not to take the last room.
        return Err(ErrorKind::StorageFull.into());
    }
    let reserve = directory.make_child(RESERVE, 0o700)?;
    for number in 0..FILES {
        let name = number.to_string();
        // One that was cut short by a kill has no size.
        let meta = reserve.stat(&name)?;
        if meta.is_some_and(|meta| u64::try_from(meta.st_size) == Ok(BYTES_EACH)) {
            continue;
        }
        reserve.remove_file(&name)?;
        let file = reserve.create_file(&name, 0o600)?;
        fallocate(&file, FallocateFlags::empty(), 0, BYTES_EACH)?;
    }
    Ok(())
}

fn remove(directory: &Directory) -> io::Result<()> {
    if directory.stat(RESERVE)?.is_none() {
        return Ok(());
    }
    directory.remove_all(RESERVE, Instant::now() + LIMIT)
}
