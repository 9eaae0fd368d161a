//! The transcript that owners send: every command and its output, every observation, in the order they happened.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The text so far. A file has each line at once, whatever becomes of the rest.
pub(crate) struct Transcript {
    text: Mutex<String>,
    file: Option<File>,
}

impl Transcript {
    /// Kept in memory.
    pub(crate) fn in_memory() -> Self {
        Self {
            text: Mutex::default(),
            file: None,
        }
    }

    /// Also written to a file, which is made now: not being able to would be noticed too late.
    pub(crate) fn to_file(path: &Path) -> Self {
        let file = File::create(path).unwrap_or_else(|error| {
            panic!(
                "nothing was changed: cannot write {}: {error}",
                path.display()
            )
        });
        Self {
            file: Some(file),
            ..Self::in_memory()
        }
    }

    pub(crate) fn add(&self, text: &str) {
        let mut all = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        // A String takes everything.
        let _ = writeln!(all, "{}", text.trim_end_matches('\n'));
        println!("{}", text.trim_end_matches('\n'));
        if let Some(mut file) = self.file.as_ref() {
            writeln!(file, "{}", text.trim_end_matches('\n')).expect("room for the transcript");
        }
    }

    /// A heading.
    pub(crate) fn begin(&self, text: &str) {
        self.add(&format!("\n== {text}"));
    }

    pub(crate) fn text(&self) -> String {
        let text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        text.clone()
    }
}
