use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Uid, caller, user_name};

/// Makes a directory with exactly these permissions, and its parents with 0755; one that is there
/// must be a directory of ours that nobody else can write to.
///
/// # Errors
/// The system's, or `PermissionDenied` where the directory is somebody else's.
pub fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(parent)?;
    }
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let meta = fs::symlink_metadata(path)?;
            if let Some(why) = not_ours(&meta) {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
            }
        }
        Err(error) => return Err(error),
    }
    // The umask may have taken bits away.
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Why a directory cannot be trusted with our state; `None` where it can.
fn not_ours(meta: &fs::Metadata) -> Option<String> {
    if !meta.is_dir() {
        return Some("it is not a directory".to_owned());
    }
    if Uid(meta.uid()) != caller() {
        return Some(format!("it belongs to {}", user_name(Uid(meta.uid()))));
    }
    (meta.mode() & 0o022 != 0).then(|| "others can write to it".to_owned())
}

/// Replaces a JSON file atomically: a reader sees the old one or the new one.
///
/// # Errors
/// The system's.
pub fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    let new = path.with_extension("json.new");
    remove_if_there(&new)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&new)?;
    file.write_all(&text)?;
    fs::rename(&new, path)
}

/// Reads a JSON file; `None` where there is none.
///
/// # Errors
/// The system's, or `InvalidData` where it is not what is expected.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(Some(serde_json::from_slice(&text)?))
}

/// Removes a file or link; one that is gone is as good as removed.
///
/// # Errors
/// The system's.
pub fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The last lines of a log file; none where there is no file.
pub fn tail(path: &Path, lines: usize) -> Vec<String> {
    const ENOUGH: u64 = 16 * 1024;
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(ENOUGH)))?;
        let mut bytes = Vec::new();
        file.take(ENOUGH).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    all[all.len().saturating_sub(lines)..]
        .iter()
        .map(|&line| line.to_owned())
        .collect()
}
