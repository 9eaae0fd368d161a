//! A program in a terminal, and what it shows.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use regex::Regex;
use testkit::terminal;

/// The time that a shell gets to show something.
const LIMIT: Duration = Duration::from_secs(30);

/// What moves the cursor or colours text.
static ESCAPES: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\x1b(\[[0-9;?>=]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[()][0-9A-Z]|[=>78DEHM])|[\r\x07\x08\x0e\x0f]")
        .unwrap()
});

/// A program in a terminal.
pub(crate) struct Terminal {
    child: Child,
    output: Receiver<Vec<u8>>,
    shown: Vec<u8>,
}

impl Terminal {
    /// Starts a command in a wide and high terminal, in which no list is cut.
    pub(crate) fn start(command: &str, settings: impl FnOnce(&mut Command)) -> Self {
        let mut script = terminal(format!("stty rows 120 cols 200; exec {command}"));
        settings(&mut script);
        script.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = script.spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let (send, output) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = stdout.read(&mut bytes)
                && count > 0
                && send.send(bytes[..count].to_vec()).is_ok()
            {}
        });
        Self {
            child,
            output,
            shown: Vec::new(),
        }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until all these texts are shown, and returns everything that is shown since the last wait.
    #[track_caller]
    pub(crate) fn await_texts(&mut self, texts: &[&str]) -> String {
        let is_shown = self.shows(texts, LIMIT);
        let shown = self.shown();
        assert!(is_shown, "not shown: {texts:?}\n{shown}");
        self.shown.clear();
        shown
    }

    /// True if all these texts are shown within this time.
    pub(crate) fn shows(&mut self, texts: &[&str], limit: Duration) -> bool {
        let until = Instant::now() + limit;
        loop {
            let shown = self.shown();
            if texts.iter().all(|text| shown.contains(text)) {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.shown.extend(bytes),
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => panic!("it has ended: {shown}"),
            }
        }
    }

    fn shown(&self) -> String {
        let shown = String::from_utf8_lossy(&self.shown);
        ESCAPES.replace_all(&shown, "").into_owned()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The terminal hangs up, which ends the shell.
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
