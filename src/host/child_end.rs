//! The end of a child program: killing it and taking its exit status.

use std::io;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid as RawPid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// The time that the kernel may take to end a process after SIGKILL.
const KILL_LIMIT: Duration = Duration::from_secs(2);

/// Kills a child and its group. Returns false if the kernel does not end it in time.
pub(super) fn kill(child: &mut Child) -> bool {
    // The child may have exited meanwhile. It was not waited for, so its pid, which is the id of its group, is not
    // reused.
    let _ = id_of(child).map(|group| kill_process_group(group, Signal::KILL));
    let _ = child.kill();
    let Ok(pidfd) = id_of(child).and_then(|id| Ok(pidfd_open(id, PidfdFlags::empty())?)) else {
        return true;
    };
    let mut watched = [PollFd::new(&pidfd, PollFlags::IN)];
    let timeout = Timespec::try_from(KILL_LIMIT).ok();
    poll(&mut watched, timeout.as_ref()).is_ok_and(|ended| ended > 0)
}

/// The time that the exit status of a process may take to arrive after its exit.
const REAP_LIMIT: Duration = Duration::from_secs(1);

/// Takes the exit status of a child that has exited. Returns `None` on timeout: a tracing process gets the status first
/// and may keep it, and a user can trace a program that runs as that user.
pub(super) fn reap(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + REAP_LIMIT;
    loop {
        match child.try_wait()? {
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            status => return Ok(status),
        }
    }
}

/// Describes the process that traces another one.
pub(super) fn tracer_of(pid: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let tracer = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"));
    match tracer.map(str::trim) {
        Some(tracer) if tracer != "0" => format!("pid {tracer}"),
        _ => "another process".to_owned(),
    }
}

pub(super) fn id_of(child: &Child) -> io::Result<RawPid> {
    let pid = i32::try_from(child.id()).ok().and_then(RawPid::from_raw);
    pid.ok_or_else(|| io::Error::other("a child without a pid"))
}
