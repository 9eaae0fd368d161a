//! The children of this process, and those that they leave behind.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::io::Errno;
use rustix::process::{WaitOptions, getpid, set_child_subreaper, wait};

use super::Pid;
use super::process_handle::raw_pid;

/// Makes this process the parent of its children's children when their own parent exits.
pub fn adopt_descendants() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Waits for all children that have exited. Returns the exit status of this one if it is among them.
pub fn reap(child: Pid) -> io::Result<Option<ExitStatus>> {
    let mut found = None;
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if Some(pid) == raw_pid(child) => {
                found = Some(ExitStatus::from_raw(status.as_raw()));
            }
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) | Err(Errno::CHILD) => return Ok(found),
            Err(error) => return Err(error.into()),
        }
    }
}
