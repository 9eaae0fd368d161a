//! Files that nobody but their owner reads and writes.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};

use super::in_path;
use super::named_file::place_of;
use super::path_error::{Fault, belongs_to, refused};

/// Opens a file to append to it, and makes it if it is not there.
///
/// # Errors
/// One that is no regular file, or a link, or that has a second name, or that belongs to somebody else, or that others can write to, is refused.
pub fn append_privately(path: &Path) -> io::Result<File> {
    open(path).map_err(|error| in_path(path, &error))
}

fn open(path: &Path) -> io::Result<File> {
    let (directory, name) = place_of(path)?;
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::CLOEXEC;
    let opened = openat(directory, name, flags, Mode::RUSR | Mode::WUSR);
    let file = File::from(opened.map_err(|error| match error {
        rustix::io::Errno::LOOP => refused(Fault::InTheWay, "it is a symbolic link"),
        error => error.into(),
    })?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(refused(Fault::InTheWay, "it is not a regular file"));
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(refused(
            Fault::Foreign(metadata.uid()),
            belongs_to(metadata.uid()),
        ));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(refused(Fault::Writable, "others can write to it"));
    }
    // In a directory of theirs users can give names to files that are not theirs.
    if metadata.nlink() > 1 {
        return Err(refused(Fault::InTheWay, "it has another name, too"));
    }
    Ok(file)
}
