//! The JSON files of a run directory, and the version of their format.

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::host::{Directory, in_path};

/// The version of the format that this program writes, and the newest it reads. Files without a version were written
/// before there was one; they have the same format.
const VERSION: u32 = 1;

/// The extension of a file before it is renamed into place.
pub(super) const HALF_MADE: &str = "new";

#[derive(Serialize)]
struct Versioned<'a, T> {
    version: u32,
    #[serde(flatten)]
    content: &'a T,
}

#[derive(Deserialize)]
struct Version {
    #[serde(default)]
    version: u32,
}

/// Reads a file. Returns `None` if there is none. Fails with `InvalidData` if its content is unexpected, and with
/// `Unsupported` if a newer mig-mps wrote it.
pub(super) fn read<T: DeserializeOwned>(
    directory: &Directory,
    name: &str,
) -> io::Result<Option<T>> {
    let Some(text) = directory.read_file(name)? else {
        return Ok(None);
    };
    let failed = |kind, why| in_path(&directory.path().join(name), &io::Error::new(kind, why));
    if let Ok(Version { version }) = serde_json::from_slice(&text)
        && version > VERSION
    {
        let why = format!(
            "a newer mig-mps wrote it (format {version}; this program reads up to {VERSION})"
        );
        return Err(failed(io::ErrorKind::Unsupported, why));
    }
    serde_json::from_slice(&text).map(Some).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let why = format!("line {line}, column {column}: not what mig-mps writes there");
        failed(io::ErrorKind::InvalidData, why)
    })
}

/// Replaces a file atomically.
pub(super) fn write(
    directory: &Directory,
    name: &str,
    content: &impl Serialize,
    mode: u32,
) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(&Versioned {
        version: VERSION,
        content,
    })?;
    text.push(b'\n');
    directory.replace_file(name, &half_made(name), &text, mode)
}

/// Returns the name of a file before it is renamed into place.
pub(super) fn half_made(name: &str) -> String {
    format!("{name}.{HALF_MADE}")
}
