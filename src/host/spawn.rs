//! The start of child processes, without anything that belongs to the caller.
//!
//! A user can trace a child that runs as that user once it has called `exec`. So the child must have no descriptor of the
//! caller, no access to the caller's terminal (the user could type there: TIOCSTI), and no key of the caller's session
//! keyring.
//!
//! A child shares the memory of this process until it calls `exec`, as with `vfork`: a copy of the page tables costs more
//! than a control session. The standard library copies them for every child that it prepares with `pre_exec`.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc;
use nix::sched::{CloneFlags, clone};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal};
use rustix::fs::{Mode, OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    WaitOptions, getppid, set_parent_process_death_signal, setsid, umask, waitpid,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use super::Pid;

/// The umask of every child.
const UMASK: u32 = 0o022;

/// The first descriptor after standard input, output and error.
const FIRST_CLOSED_FD: libc::c_uint = 3;

/// The highest descriptor that is closed one by one without `close_range`.
const LAST_ONE_BY_ONE: libc::c_int = 1 << 16;

/// The stack of a child until it calls `exec`, in bytes. It makes a few system calls.
const STACK: usize = 64 << 10;

/// A child and our ends of its pipes, which do not block.
pub(super) struct Child {
    pub(super) pid: Pid,
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

/// Starts a program, given by its path, in a new session, in `/`, with pipes as descriptors 0 to 2 and no others, no
/// keys, default signals and a fixed umask. Its environment is what the command sets, and nothing else.
pub(super) fn spawn(command: &Command) -> io::Result<Child> {
    let image = Image::from_command(command)?;
    // Rust's runtime keeps descriptors 0 to 2 open, so a pipe never gets one of these numbers.
    let (child_stdin, stdin) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stdout, child_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stderr, child_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    for ours in [&stdin, &stdout, &stderr] {
        fcntl_setfl(ours, OFlags::NONBLOCK)?;
    }
    let pid = image.start_after(|| {
        dup2_stdin(&child_stdin)?;
        dup2_stdout(&child_stdout)?;
        dup2_stderr(&child_stderr)
    })?;
    Ok(Child {
        pid,
        stdin,
        stdout,
        stderr,
    })
}

/// The program, arguments and environment of a child, as `execve` takes them.
struct Image {
    program: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

impl Image {
    fn from_command(command: &Command) -> io::Result<Self> {
        let program = c_string(command.get_program())?;
        let arguments = command.get_args().map(c_string);
        let variables = command.get_envs().filter_map(|(name, value)| {
            let value = value?;
            Some(CString::new(
                [name.as_bytes(), b"=", value.as_bytes()].concat(),
            ))
        });
        Ok(Self {
            arguments: std::iter::once(Ok(program.clone()))
                .chain(arguments)
                .collect::<Result<_, _>>()?,
            environment: variables.collect::<Result<_, _>>()?,
            program,
        })
    }

    /// Starts the program after `prepare`, which may only make system calls.
    fn start_after(&self, prepare: impl Fn() -> rustix::io::Result<()>) -> io::Result<Pid> {
        let arguments = null_terminated_array(&self.arguments);
        let environment = null_terminated_array(&self.environment);
        let mut failed = None;
        let mut stack = vec![0; STACK];
        let child = Box::new(|| {
            let prepared = prepare().and_then(|()| isolate_child());
            if prepared.is_ok() {
                // SAFETY: both arrays end with a null pointer, and their strings live as long as `self`.
                unsafe {
                    libc::execve(
                        self.program.as_ptr(),
                        arguments.as_ptr(),
                        environment.as_ptr(),
                    )
                };
            }
            // Reached only if one of the calls failed.
            failed = Some(prepared.err().unwrap_or_else(last_error));
            1
        });
        let flags = CloneFlags::CLONE_VM | CloneFlags::CLONE_VFORK;
        // A handler of this process must not run in the child, on the shared memory.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        // SAFETY: this thread waits until the child has called `exec` or ended, so everything that the child uses
        // lives. The child makes async-signal-safe calls alone: system calls without allocation or locks.
        let pid = unsafe { clone(child, &mut stack, flags, Some(libc::SIGCHLD)) };
        mask.thread_set_mask()?;
        let pid = pid?;
        if let Some(error) = failed {
            waitpid(
                rustix::process::Pid::from_raw(pid.as_raw()),
                WaitOptions::empty(),
            )?;
            return Err(error.into());
        }
        Ok(Pid(pid.as_raw().cast_unsigned()))
    }
}

fn c_string(text: &OsStr) -> Result<CString, std::ffi::NulError> {
    CString::new(text.as_bytes())
}

/// Returns a null-terminated array.
fn null_terminated_array(strings: &[CString]) -> Vec<*const libc::c_char> {
    let null = std::iter::once(std::ptr::null());
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain(null)
        .collect()
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

/// Runs in the child, before `exec`.
fn isolate_child() -> rustix::io::Result<()> {
    setsid()?;
    rustix::process::chdir(c"/")?;
    leave_session_keyring()?;
    umask(Mode::from_raw_mode(UMASK));
    reset_signals();
    let _ = SigSet::empty().thread_set_mask();
    close_on_exec_from(FIRST_CLOSED_FD);
    Ok(())
}

/// Joins an empty session keyring. A change of uid keeps the old one, and a process may read the keys of its keyring.
fn leave_session_keyring() -> rustix::io::Result<()> {
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
    // A kernel without keys, and a container's filter, which holds for the child as well.
    match last_error() {
        Errno::NOSYS | Errno::PERM => Ok(()),
        // The children of a plain user run as the same user, so an exhausted quota of keys does no harm.
        _ if !rustix::process::geteuid().is_root() => Ok(()),
        error => Err(error),
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

/// The ignored signals of those in [`CHANGED_SIGNALS`] when this process was started, as bits.
static IGNORED_AT_START: AtomicU64 = AtomicU64::new(0);

/// The signals whose action this process changes although it was started with another one: Rust's runtime ignores
/// SIGPIPE, and [`reset_sigchld`] resets SIGCHLD.
const CHANGED_SIGNALS: [Signal; 2] = [Signal::SIGPIPE, Signal::SIGCHLD];

/// Called by the loader, before Rust's runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_IGNORED: extern "C" fn() = note_ignored;

extern "C" fn note_ignored() {
    for signal in CHANGED_SIGNALS {
        // SAFETY: the call writes the present action into a zeroed, valid place, and changes nothing.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal as libc::c_int, std::ptr::null(), &raw mut action);
            action
        };
        if action.sa_sigaction == libc::SIG_IGN {
            IGNORED_AT_START.fetch_or(1 << signal as u32, Ordering::Relaxed);
        }
    }
}

/// Gives SIGCHLD its default action: a process that ignores it loses the exit status of its children.
pub fn reset_sigchld() -> io::Result<()> {
    // SAFETY: the default action is no function of ours.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    Ok(())
}

/// Makes a command of the user ignore the signals that this process was started to ignore. The standard library gives
/// SIGPIPE its default action in every program that it starts or becomes.
pub fn restore_ignored_signals(command: &mut Command) {
    let ignored = IGNORED_AT_START.load(Ordering::Relaxed);
    if ignored == 0 {
        return;
    }
    // SAFETY: the closure makes system calls alone.
    unsafe { command.pre_exec(move || ignore_signals(ignored)) };
}

/// Makes the kernel kill a program of the user when this process ends, however it ends. To be started by the first thread.
pub fn kill_with_parent(command: &mut Command) {
    let caller = rustix::process::getpid();
    let bind = move || {
        set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // It may have ended before.
        if getppid() == Some(caller) {
            Ok(())
        } else {
            Err(Errno::SRCH.into())
        }
    };
    // SAFETY: the closure makes system calls alone.
    unsafe { command.pre_exec(bind) };
}

/// Gives the calling thread, and what it starts, the scheduling policy of most programs.
pub(super) fn use_usual_scheduling() -> io::Result<()> {
    // SAFETY: the call takes and returns integers.
    if unsafe { libc::sched_getscheduler(0) } == libc::SCHED_OTHER {
        return Ok(());
    }
    let usual = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameter lives until the call returns, which only reads it.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const usual) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ignores the signals whose bits are set.
fn ignore_signals(signals: u64) -> io::Result<()> {
    for ignored_signal in CHANGED_SIGNALS {
        if signals & (1 << ignored_signal as u32) != 0 {
            // SAFETY: ignoring a signal runs no function of ours.
            unsafe { signal(ignored_signal, SigHandler::SigIgn) }?;
        }
    }
    Ok(())
}

/// Marks all descriptors from `first` on to be closed by `exec`.
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
