//! The output of a copy of a program, passed on line by line.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags};

use crate::host::printable;

/// The most of a line that is kept until its end comes, in bytes. A longer one is shown in pieces.
const LINE: usize = 64 << 10;

/// The output of this program to which an output of a copy is passed on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    Stdout,
    Stderr,
}

/// An output of a copy.
pub(super) struct CopyOutput {
    /// The number of the copy.
    number: usize,
    target: Target,
    /// `None` once it is closed.
    pipe: Option<File>,
    lines: Lines,
}

impl CopyOutput {
    pub(super) fn new(number: usize, target: Target, pipe: impl Into<OwnedFd>) -> Self {
        Self {
            number,
            target,
            pipe: Some(File::from(pipe.into())),
            lines: Lines::default(),
        }
    }

    /// Returns what to poll for output; `None` once it is closed.
    pub(super) fn poll_fd(&self) -> Option<PollFd<'_>> {
        let pipe = self.pipe.as_ref()?;
        Some(PollFd::new(pipe, PollFlags::IN))
    }

    /// Passes on what has come. Closes the pipe at its end, and where nobody reads what is passed on: the copy then gets
    /// SIGPIPE, as in a pipeline.
    pub(super) fn pass_on(&mut self) {
        let mut buffer = [0; 16 << 10];
        let Some(pipe) = &mut self.pipe else { return };
        let lines = match pipe.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return,
            Ok(0) | Err(_) => {
                self.pipe = None;
                self.lines.end()
            }
            Ok(read) => self.lines.add(&buffer[..read]),
        };
        let mut text = String::new();
        for line in lines {
            let _ = writeln!(text, "[{}] {}", self.number, printable(&line));
        }
        if self.target.write(&text).is_err() {
            self.pipe = None;
        }
    }
}

impl Target {
    fn write(self, text: &str) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(text.as_bytes())?;
                stdout.flush()
            }
            Self::Stderr => io::stderr().write_all(text.as_bytes()),
        }
    }
}

/// Bytes, cut into lines. A carriage return ends a line too: progress is shown as it comes.
#[derive(Default)]
struct Lines {
    begun: Vec<u8>,
    /// The last line ended with a carriage return, and a newline after it ends no other.
    has_returned: bool,
}

impl Lines {
    /// Adds bytes; returns the lines that they end.
    fn add(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for &byte in bytes {
            let has_returned = std::mem::take(&mut self.has_returned);
            match byte {
                b'\n' if has_returned => {}
                b'\n' => lines.extend([self.take()]),
                b'\r' => {
                    self.has_returned = !self.begun.is_empty();
                    lines.extend(self.end());
                }
                byte => self.begun.push(byte),
            }
            if self.begun.len() >= LINE {
                lines.extend([self.take_piece()]);
            }
        }
        lines
    }

    /// Returns the last line, if it has no end.
    fn end(&mut self) -> Vec<String> {
        if self.begun.is_empty() {
            return Vec::new();
        }
        vec![self.take()]
    }

    fn take(&mut self) -> String {
        let line = String::from_utf8_lossy(&self.begun).into_owned();
        self.begun.clear();
        line
    }

    /// The same without a character at the end that is not complete.
    fn take_piece(&mut self) -> String {
        let whole = match std::str::from_utf8(&self.begun) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.begun.len(),
        };
        let rest = self.begun.split_off(whole);
        let piece = self.take();
        self.begun = rest;
        piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newlines_and_carriage_returns_end_lines() {
        let mut lines = Lines::default();
        assert_eq!(lines.add(b"a\n\nb\r"), ["a", "", "b"]);
        assert_eq!(lines.add(b"\n10%\r20%\r\r\n"), ["10%", "20%", ""]);
        assert_eq!(lines.add(b"rest"), [""; 0]);
        assert_eq!(lines.end(), ["rest"]);
        assert_eq!(lines.end(), [""; 0]);
    }

    #[test]
    fn a_line_without_end_comes_in_pieces_of_whole_characters() {
        let mut lines = Lines::default();
        let text = format!("a{}", "ä".repeat(LINE));
        let mut pieces = lines.add(text.as_bytes());
        assert_eq!(pieces.len(), 2);
        assert!(lines.begun.len() < LINE);
        pieces.extend(lines.end());
        assert_eq!(pieces.concat(), text);
    }
}
