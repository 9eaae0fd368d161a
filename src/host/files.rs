//! JSON state files, and errors that name a file.

use std::io::{self, Read, Write};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Directory;

/// The most that is read of a file at once, in bytes: nothing that a person writes, and no state, is larger.
const MOST: u64 = 1 << 20;

/// An error that says which file it is about.
pub fn in_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Reads a text of at most 1 MiB. Fails with `FileTooLarge`, or with `InvalidData` if it is not UTF-8.
pub fn read_text(file: impl Read) -> io::Result<String> {
    String::from_utf8(read_limited(file)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// Reads a whole file of at most 1 MiB.
pub(super) fn read_limited(file: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut file = file.take(MOST + 1);
    file.read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST {
        let why = "it is larger than 1 MiB, and not read";
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

impl Directory {
    /// Reads a JSON file; `None` if there is none. `InvalidData` if it is not what is expected.
    pub fn read_json<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        let Some(text) = self.read_file(name)? else {
            return Ok(None);
        };
        let parsed = serde_json::from_slice(&text);
        parsed.map(Some).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            let why = format!("line {line}, column {column}: not what mig-mps writes there");
            let error = io::Error::new(io::ErrorKind::InvalidData, why);
            in_path(&self.path().join(name), &error)
        })
    }

    /// Replaces a JSON file atomically: a reader sees the old one or the new one.
    pub fn write_json(&self, name: &str, value: &impl Serialize, mode: u32) -> io::Result<()> {
        let new = format!("{name}.new");
        let write = || {
            let mut text = serde_json::to_vec_pretty(value)?;
            text.push(b'\n');
            self.remove_file(&new)?;
            self.create_file(&new, mode)?.write_all(&text)
        };
        let written = write().map_err(|error| in_path(&self.path().join(name), &error));
        let replaced = written.and_then(|()| self.rename(&new, self, name));
        if replaced.is_err() {
            // The disk may be full: half a file is of no use.
            let _ = self.remove_file(&new);
        }
        replaced
    }
}
