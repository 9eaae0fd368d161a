use std::io::{Read, Write};
use std::process::Child;

use super::Ran;

/// A subcommand of `mig-mps` in a terminal, that is talked with.
pub(crate) struct Dialogue {
    child: Child,
    said: Vec<u8>,
    /// Up to where a text has been awaited.
    heard: usize,
}

impl Dialogue {
    /// With a program that runs in a terminal: its output goes to a pipe, and its input comes from one.
    pub(crate) const fn with(child: Child) -> Self {
        Self {
            child,
            said: Vec::new(),
            heard: 0,
        }
    }

    /// Waits until it says that, after what was awaited before.
    pub(crate) fn await_text(&mut self, text: &str) {
        let shown = self.child.stdout.as_mut().unwrap();
        while !String::from_utf8_lossy(&self.said[self.heard..]).contains(text) {
            let mut byte = [0];
            let count = shown.read(&mut byte).unwrap();
            assert_ne!(
                count,
                0,
                "it ended without {text}: {}",
                String::from_utf8_lossy(&self.said)
            );
            self.said.push(byte[0]);
        }
        self.heard = self.said.len();
    }

    pub(crate) fn press(&mut self, keys: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for its end; all that it has said, on its standard output.
    pub(crate) fn end(mut self) -> Ran {
        drop(self.child.stdin.take());
        let shown = self.child.stdout.as_mut().unwrap();
        shown.read_to_end(&mut self.said).unwrap();
        Ran {
            status: self.child.wait().unwrap().code().unwrap_or(-1),
            stdout: String::from_utf8(self.said).unwrap().replace('\r', ""),
            stderr: String::new(),
            progress: String::new(),
        }
    }
}
