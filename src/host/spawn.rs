//! The start of child processes, without anything that belongs to the caller.
//!
//! A user can trace a child that runs as that user once it has called `exec`. So the child must have no descriptor of the
//! caller, no access to the caller's terminal (the user could type there: TIOCSTI), and no key of the caller's session
//! keyring.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use rustix::fs::Mode;
use rustix::process::{setsid, umask};

/// The umask of every child.
const UMASK: u32 = 0o022;

/// The first descriptor after standard input, output and error.
const FIRST: libc::c_uint = 3;

/// The highest descriptor that is closed one by one without `close_range`.
const LAST_ONE_BY_ONE: libc::c_int = 1 << 16;

/// Makes a command start in a new session, in `/`, with descriptors 0 to 2, no keys, default signals and
/// a fixed umask.
///
/// The caller has to clear the environment. The command must not be put into another process group: a group leader
/// cannot start a session.
pub(super) fn isolate(command: &mut Command) {
    command.current_dir("/");
    // SAFETY: `start_anew` makes only async-signal-safe calls: system calls without allocation or locks.
    unsafe { command.pre_exec(start_anew) };
}

/// Runs in the child, between `fork` and `exec`.
fn start_anew() -> io::Result<()> {
    setsid()?;
    leave_session_keyring()?;
    umask(Mode::from_raw_mode(UMASK));
    reset_signals();
    unblock_signals();
    close_on_exec_from(FIRST);
    Ok(())
}

/// Joins an empty session keyring. A change of uid keeps the old one, and a process may read the keys of its keyring.
fn leave_session_keyring() -> io::Result<()> {
    const JOIN_SESSION_KEYRING: libc::c_ulong = 1;
    // SAFETY: the call takes an integer and a null pointer, which asks for a keyring without a name.
    let joined = unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            JOIN_SESSION_KEYRING,
            std::ptr::null::<libc::c_char>(),
        )
    };
    if joined >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    // A kernel without keys, and a container's filter, which holds for the child as well.
    match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EPERM) => Ok(()),
        // The children of a plain user run as the same user, so an exhausted quota of keys does no harm.
        _ if !rustix::process::geteuid().is_root() => Ok(()),
        _ => Err(error),
    }
}

/// Gives every signal its default action: an ignored one would stay ignored across `exec`.
///
/// Uses the system call, because the C library refuses the two signals that it keeps for its threads.
fn reset_signals() {
    /// The kernel's `struct sigaction`, all zero: the default action, no flags, an empty mask.
    const DEFAULT: [u64; 4] = [0; 4];
    /// The size of the kernel's signal set.
    const SET_SIZE: usize = 8;
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: the kernel reads 32 bytes at most from `DEFAULT` and writes nothing. SIGKILL and SIGSTOP are
        // refused with `EINVAL`, which does no harm.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                DEFAULT.as_ptr(),
                std::ptr::null_mut::<u64>(),
                SET_SIZE,
            )
        };
    }
}

/// Empties the signal mask, which the standard library leaves as the caller's.
fn unblock_signals() {
    // SAFETY: an all-zero set is valid, and both calls only touch it. They are async-signal-safe.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Marks all descriptors from `first` on to be closed by `exec`. The one by which the standard library reports a failed
/// `exec` must stay open until then.
fn close_on_exec_from(first: libc::c_uint) {
    // SAFETY: the call takes three integers and touches no memory. It exists from Linux 5.11 on.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if done == 0 {
        return;
    }
    // An older kernel: one by one, up to the limit of open files.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let last = limit.map_or(LAST_ONE_BY_ONE, |limit| {
        libc::c_int::try_from(limit).map_or(LAST_ONE_BY_ONE, |limit| limit.min(LAST_ONE_BY_ONE))
    });
    for fd in first.cast_signed()..last {
        // SAFETY: the call takes integers alone; on a descriptor that is not open it fails with `EBADF`.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}
