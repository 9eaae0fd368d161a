use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Uid, caller, user_name};

/// An error that says which file it is about.
pub fn in_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Makes a directory with exactly these permissions, and its parents with 0755. One that is there
/// keeps its own: it must be a directory of ours that nobody else can write to.
///
/// # Errors
/// The system's, or `PermissionDenied` where the directory is somebody else's; with its path.
pub fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    let make = || {
        if let Some(parent) = path.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(parent)?;
        }
        match DirBuilder::new().mode(mode).create(path) {
            // The umask may have taken bits away.
            Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                match not_ours(&fs::symlink_metadata(path)?) {
                    Some(why) => Err(io::Error::new(io::ErrorKind::PermissionDenied, why)),
                    None => Ok(()),
                }
            }
            Err(error) => Err(error),
        }
    };
    make().map_err(|error| in_path(path, &error))
}

/// Makes a directory that is `owner`'s with exactly these permissions, and `group`'s where one is given, and
/// its parents with 0755. One that is there already must be that owner's, and closed to others' writing.
///
/// Only root makes directories for others. It goes by the open directory and follows no link: whoever owns
/// it may change what lies in it at any moment.
///
/// # Errors
/// The system's, or `PermissionDenied` where the directory is somebody else's; with its path.
pub fn make_dir_of(path: &Path, mode: u32, owner: Uid, group: Option<u32>) -> io::Result<()> {
    let make = || {
        if let Some(parent) = path.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(parent)?;
        }
        let is_new = match DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(error),
        };
        let flags = OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(path)?;
        let meta = directory.metadata()?;
        let refuse = |why| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        if is_new && Uid(meta.uid()) != owner {
            std::os::unix::fs::fchown(&directory, Some(owner.0), None)?;
        } else if Uid(meta.uid()) != owner {
            return refuse(format!("it belongs to {}", user_name(Uid(meta.uid()))));
        } else if !is_new && meta.mode() & 0o022 != 0 {
            return refuse("others can write to it".to_owned());
        }
        if group.is_some_and(|group| group != meta.gid()) {
            std::os::unix::fs::fchown(&directory, None, group)?;
        }
        // The umask may have taken bits away, and who may enter may have changed.
        directory.set_permissions(fs::Permissions::from_mode(mode))
    };
    make().map_err(|error| in_path(path, &error))
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
/// The system's, with the path.
pub fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    replace_json(path, value, 0o644)
}

/// The same for a file that only its owner may read.
///
/// # Errors
/// The system's, with the path.
pub fn write_private_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    replace_json(path, value, 0o600)
}

fn replace_json(path: &Path, value: &impl Serialize, mode: u32) -> io::Result<()> {
    let write = || {
        let mut text = serde_json::to_vec_pretty(value)?;
        text.push(b'\n');
        let new = path.with_extension("json.new");
        remove_if_there(&new)?;
        let put = || {
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(mode)
                .open(&new)?;
            file.write_all(&text)?;
            fs::rename(&new, path)
        };
        // A full disk keeps half of it.
        put().inspect_err(|_| drop(fs::remove_file(&new)))
    };
    write().map_err(|error| in_path(path, &error))
}

/// Reads a JSON file; `None` where there is none. Whatever lies there instead, a link, a FIFO, a
/// file without end, is refused and not followed: root reads users' directories too.
///
/// # Errors
/// The system's, or `InvalidData` where it is not what is expected; with the path.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let read = || {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it is no regular file",
            ));
        }
        Ok(serde_json::from_slice(&read_limited(file)?)?)
    };
    match read() {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(in_path(path, &error)),
    }
}

/// Reads a whole file of at most 1 MiB: nothing that a person writes, and no state of ours, is larger.
fn read_limited(file: impl Read) -> io::Result<Vec<u8>> {
    const MOST: u64 = 1 << 20;
    let mut bytes = Vec::new();
    let mut file = file.take(MOST + 1);
    file.read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST {
        let why = "it is larger than 1 MiB, and not read";
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

/// Reads a text of at most 1 MiB.
///
/// # Errors
/// The system's, `FileTooLarge`, or `InvalidData` where it is no UTF-8.
pub fn read_text(file: impl Read) -> io::Result<String> {
    String::from_utf8(read_limited(file)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// Removes a file or link; one that is gone is as good as removed.
///
/// # Errors
/// The system's, with the path.
pub fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(in_path(path, &error)),
        _ => Ok(()),
    }
}

/// The last lines of a log file behind its first `from` bytes; none where there is no file.
pub fn tail(path: &Path, from: u64, lines: usize) -> Vec<String> {
    const ENOUGH: u64 = 16 * 1024;
    let text = end_of(path, from, ENOUGH);
    let all: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    all[all.len().saturating_sub(lines)..]
        .iter()
        .map(|&line| line.to_owned())
        .collect()
}

/// The last `most` bytes of a log file behind its first `from`; nothing where there is no file.
pub fn end_of(path: &Path, from: u64, most: u64) -> String {
    let read = || -> io::Result<Vec<u8>> {
        // A user's log directory may hold anything.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Ok(Vec::new());
        }
        let length = meta.len();
        // A log that is shorter now has been begun anew.
        let from = if from > length { 0 } else { from };
        file.seek(SeekFrom::Start(
            from.max(length.saturating_sub(most)).min(length),
        ))?;
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}
