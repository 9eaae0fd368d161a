//! The kernel that this program needs.

use rustix::io::Errno;
use thiserror::Error;

use super::{Pid, ProcessHandle};

/// The kernel lacks a call without which no process can be ended safely, and no child within a limit.
#[derive(Debug, Error)]
#[error("mig-mps needs Linux 5.3 or newer: pidfd_open, which came with it, fails: {0}")]
pub struct OldKernel(Errno);

impl OldKernel {
    /// Returns the remedy.
    pub fn hint(&self) -> &'static str {
        match self.0 {
            Errno::PERM => {
                "a container's filter of system calls refuses it: update the container engine"
            }
            _ => {
                "uname -r shows the kernel's version; in a container, its filter of system calls may refuse the call"
            }
        }
    }
}

/// Refuses a kernel before Linux 5.3.
pub fn refuse_old_kernel() -> Result<(), OldKernel> {
    match ProcessHandle::open(Pid(std::process::id())) {
        Err(error @ (Errno::NOSYS | Errno::PERM)) => Err(OldKernel(error)),
        _ => Ok(()),
    }
}
