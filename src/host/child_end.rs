//! The end of a child program: killing it and taking its exit status.

use std::io;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid as RawPid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// How long the kernel may take to end a process that was sent SIGKILL.
const KILL_LIMIT: Duration = Duration::from_secs(2);

/// Ends a child and its group; false if the kernel does not end it in time.
pub(super) fn kill(child: &mut Child) -> bool {
    // It may have ended by itself meanwhile. It has not been waited for, so its pid, which is its group's id,
    // is nobody else's.
    let _ = id_of(child).map(|group| kill_process_group(group, Signal::KILL));
    let _ = child.kill();
    let Ok(pidfd) = id_of(child).and_then(|id| Ok(pidfd_open(id, PidfdFlags::empty())?)) else {
        return true;
    };
    let mut watched = [PollFd::new(&pidfd, PollFlags::IN)];
    let timeout = Timespec::try_from(KILL_LIMIT).ok();
    poll(&mut watched, timeout.as_ref()).is_ok_and(|ended| ended > 0)
}

/// How long the exit status of a process that has ended may take to come.
const REAP_LIMIT: Duration = Duration::from_secs(1);

/// Takes the exit status of a child that has ended; `None` if it does not come. A process that traces the child has it
/// first and may keep it: a program that runs as a user can be traced by that user.
pub(super) fn reap(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + REAP_LIMIT;
    loop {
        match child.try_wait()? {
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            status => return Ok(status),
        }
    }
}

/// The process that traces another one, in words.
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
