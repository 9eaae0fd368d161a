//! The input and output of a child program.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::ProcessHandle;
use super::spawn::Child;

/// The time to go on reading after a program has exited: a daemon that it started may keep the pipe open for ever.
const GRACE: Duration = Duration::from_millis(200);

/// The most that a program may write to each of its outputs, in bytes. The program may be a user's.
pub(super) const MOST_OUTPUT: usize = 1 << 20;

/// The most of an output that an error quotes, in characters.
const MOST_QUOTED: usize = 200;

/// The result of exchanging input and output with a child.
pub(super) enum Exchange {
    /// The child has exited.
    Ended { stdout: String, stderr: String },
    /// The limit has passed.
    Late,
    /// The child has written more than [`MOST_OUTPUT`].
    TooMuch { begun: String },
}

/// Writes the input and reads both outputs until the child has exited.
pub(super) fn exchange(child: Child, input: &str, limit: Duration) -> io::Result<Exchange> {
    let mut input = Input {
        pipe: Some(child.stdin),
        left: input.as_bytes(),
    };
    let held = ProcessHandle::open(child.pid)?;
    let mut out = Stream::of(child.stdout);
    let mut err = Stream::of(child.stderr);
    let mut deadline = Instant::now() + limit;
    let mut alive = true;
    loop {
        input.write()?;
        let pipe = input.pipe.iter();
        let streams = out.file.iter().chain(&err.file);
        let mut watched: Vec<PollFd<'_>> = pipe
            .map(|pipe| PollFd::new(pipe, PollFlags::OUT))
            .chain(streams.map(|file| PollFd::new(file, PollFlags::IN)))
            .chain(alive.then(|| held.poll_fd()))
            .collect();
        if watched.is_empty() {
            break;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut watched, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let just_ended = alive
            && watched
                .last()
                .is_some_and(|held| held.revents().contains(PollFlags::IN));
        for stream in [&mut out, &mut err] {
            stream.read()?;
            if stream.bytes.len() > MOST_OUTPUT {
                let text = String::from_utf8_lossy(&stream.bytes[..4 * MOST_QUOTED]);
                let begun = text.chars().take(MOST_QUOTED).collect();
                return Ok(Exchange::TooMuch { begun });
            }
        }
        if just_ended {
            alive = false;
            input.pipe = None;
            deadline = Instant::now() + GRACE;
        } else if Instant::now() >= deadline {
            // Also where output still comes.
            if alive {
                return Ok(Exchange::Late);
            }
            break;
        }
    }
    Ok(Exchange::Ended {
        stdout: out.text(),
        stderr: err.text(),
    })
}

/// The input that is not written yet. The child may be stopped, and a pipe holds only 64 KiB.
struct Input<'a> {
    pipe: Option<OwnedFd>,
    left: &'a [u8],
}

impl Input<'_> {
    /// Writes as much as the pipe takes, and closes it at the end.
    fn write(&mut self) -> io::Result<()> {
        while let Some(pipe) = &self.pipe {
            match rustix::io::write(pipe, self.left) {
                Ok(written) => self.left = &self.left[written..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // A program that does not read its input may still have output.
                Err(Errno::PIPE) => self.left = &[],
                Err(error) => return Err(error.into()),
            }
            if self.left.is_empty() {
                self.pipe = None;
            }
        }
        Ok(())
    }
}

fn is_transient(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// An output of the child, read without blocking.
struct Stream {
    file: Option<File>,
    bytes: Vec<u8>,
}

impl Stream {
    fn of(pipe: OwnedFd) -> Self {
        Self {
            file: Some(pipe.into()),
            bytes: Vec::new(),
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        // No more at once: a program may write as fast as this is read.
        let mut buffer = [0; 16 << 10];
        match file.read(&mut buffer) {
            Ok(0) => self.file = None,
            Ok(read) => self.bytes.extend_from_slice(&buffer[..read]),
            Err(error) if is_transient(error.kind()) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn text(self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::host::Pid;

    /// Output without end is bounded by the time limit, also where there is always more to read.
    #[test]
    fn a_time_limit_holds_while_output_flows() {
        let mut asleep = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let flows = || File::open("/dev/zero").unwrap().into();
        let child = Child {
            pid: Pid(asleep.id()),
            stdin: asleep.stdin.take().unwrap().into(),
            stdout: flows(),
            stderr: flows(),
        };
        let exchanged = exchange(child, "", Duration::ZERO).unwrap();
        assert!(matches!(exchanged, Exchange::Late));
        asleep.kill().unwrap();
        asleep.wait().unwrap();
    }
}
