//! JSON state files.

use std::io::{self, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Directory, in_path};

impl Directory {
    /// Reads a JSON file. Returns `None` if there is none. Fails with `InvalidData` if its content is unexpected.
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

    /// Replaces a JSON file atomically.
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
            // The disk may be full, and an incomplete file is of no use.
            let _ = self.remove_file(&new);
        }
        replaced
    }
}
