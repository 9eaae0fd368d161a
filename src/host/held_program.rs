//! A child program that goes on until it is let go, or left.

use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::child::{RunError, kill_group, spawn_with_retry, take_exit_status};
use super::process::wait_until_ready;
use super::{FileError, FileResult, Pid, ProcessHandle};

/// The time that the program may take to exit after its standard input has ended.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);

/// The most that its first line may have, in bytes.
const MAX_LINE_BYTES: usize = 4 << 10;

/// A program in a session of its own that exits when its standard input ends: when this is dropped, or this process exits.
#[derive(Debug)]
pub struct HeldProgram {
    pid: Pid,
    stdin: Option<OwnedFd>,
}

impl HeldProgram {
    /// Starts a program, and returns the first line that it prints within the limit.
    pub fn start(
        program: &str,
        command: &Command,
        limit: Duration,
    ) -> Result<(Self, String), RunError> {
        let failed = |error: FileError| RunError::Start {
            program: program.to_owned(),
            error,
        };
        let child = spawn_with_retry(command).map_err(failed)?;
        let held = Self {
            pid: child.pid,
            stdin: Some(child.stdin),
        };
        let line = read_line(&child.stdout, Instant::now() + limit).map_err(failed)?;
        let line = line.ok_or_else(|| RunError::Late {
            program: program.to_owned(),
            limit,
        })?;
        Ok((held, line))
    }

    /// Returns its process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Lets it go on after this process, for as long as it decides itself.
    pub fn leave(mut self) {
        self.stdin = None;
        std::mem::forget(self);
    }
}

impl Drop for HeldProgram {
    fn drop(&mut self) {
        self.stdin = None;
        let held = ProcessHandle::open(self.pid);
        if !held.is_ok_and(|held| held.wait_for_exit(EXIT_TIMEOUT)) {
            kill_group(self.pid);
        }
        let _ = take_exit_status(self.pid);
    }
}

/// Reads a line, or what is there when the output ends; `None` if the time is over.
fn read_line(output: &OwnedFd, until: Instant) -> FileResult<Option<String>> {
    let mut line = Vec::new();
    while line.len() < MAX_LINE_BYTES && !line.ends_with(b"\n") {
        let mut watched = [PollFd::from_borrowed_fd(output.as_fd(), PollFlags::IN)];
        if !wait_until_ready(&mut watched, until)? {
            return Ok(None);
        }
        let mut byte = [0];
        match rustix::io::read(output, &mut byte) {
            Ok(0) => break,
            Ok(_) => line.push(byte[0]),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some(String::from_utf8_lossy(&line).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn it_goes_on_until_it_is_let_go() {
        let (held, line) =
            HeldProgram::start("sh", &shell("echo up; read x"), Duration::from_secs(10)).unwrap();
        assert_eq!(line, "up\n");
        let process = ProcessHandle::open(held.pid).unwrap();
        assert!(!process.wait_for_exit(Duration::from_millis(50)));
        drop(held);
        assert!(process.wait_for_exit(Duration::ZERO));
    }

    #[test]
    fn one_that_says_nothing_in_time_or_does_not_end_is_ended() {
        let late = HeldProgram::start("sh", &shell("sleep 600"), Duration::from_millis(50));
        assert!(matches!(late, Err(RunError::Late { .. })), "{late:?}");
        let stubborn = shell("echo up; exec sleep 600");
        let (held, _) = HeldProgram::start("sh", &stubborn, Duration::from_secs(10)).unwrap();
        let process = ProcessHandle::open(held.pid).unwrap();
        drop(held);
        assert!(process.wait_for_exit(Duration::ZERO));
    }
}
