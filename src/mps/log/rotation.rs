use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::fs::{FileType, Gid, Mode, OFlags, Uid, fchown, ftruncate};

use super::{KEPT, LogDir, LogFile};
use crate::host::in_path;

/// The size in bytes at which a log is rotated. With a client connected, a query by `status` adds about 900 bytes to
/// control.log: one every 15 s fills the limit in a day and a half, so the log and its three older parts cover most of a
/// week. On a node with 56 devices all logs together stay below 4 GiB.
pub const LOG_LIMIT: u64 = 8 << 20;

/// The most that is copied of a log's end, in bytes. The owner of the directory may have made a file of any size.
const MOST: u64 = 4 * LOG_LIMIT;

/// A log that was rotated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    pub log: PathBuf,
    /// The file name of the copy.
    pub older: String,
    /// The length of the log before, in bytes.
    pub length: u64,
    /// The length of the copy, the end of the log, in bytes.
    pub kept: u64,
}

/// Rotates the logs that have grown over the limit: each is copied to `control.log.1` and truncated, because the daemon
/// keeps its file open and only appends. Lines written between the two are lost. Returns the rotated logs, and errors
/// with their paths: the system's, or `PermissionDenied` if a log is not a regular file of its owner.
///
/// The directory may belong to a user. No link is followed, and only regular files with one link that belong to the
/// directory's owner are touched, so a user can only harm their own files. (Only we can write to the parent directory,
/// so the owner of the directory itself can be trusted.)
pub fn rotate(dir: &LogDir) -> Vec<io::Result<Rotation>> {
    let logs = LogFile::ALL.into_iter();
    logs.filter_map(|log| rotate_log(dir, log).transpose())
        .collect()
}

/// True if one of the logs has grown over the limit, or is not a regular file.
pub fn needs_rotation(dir: &LogDir) -> bool {
    let is_due = |log: LogFile| match dir.directory().stat(log.name()) {
        Ok(Some(meta)) => {
            let is_file = FileType::from_raw_mode(meta.st_mode) == FileType::RegularFile;
            !is_file || meta.st_size.cast_unsigned() > LOG_LIMIT
        }
        Ok(None) => false,
        Err(_) => true,
    };
    LogFile::ALL.into_iter().any(is_due)
}

fn rotate_log(dir: &LogDir, log: LogFile) -> io::Result<Option<Rotation>> {
    let Some((mut file, meta)) = open_large(dir, log)? else {
        return Ok(None);
    };
    // Under a name of its own first: an unfinished copy must not pass for a part of the log.
    let copy_name = format!("{}.new", log.name());
    dir.directory().remove_file(&copy_name)?;
    let copy = dir.directory().create_file(&copy_name, 0o600)?;
    let (left_out, kept) = copy_end(&mut file, &copy)
        .and_then(|copied| copy_permissions(&copy, &meta).map(|()| copied))
        .map_err(|error| in_path(&dir.path().join(&copy_name), &error))
        .and_then(|copied| shift_parts(dir, log, &copy_name).map(|()| copied))
        // An unfinished copy is of no use, and the disk may be full.
        .inspect_err(|_| drop(dir.directory().remove_file(&copy_name)))?;
    ftruncate(&file, 0).map_err(|error| in_path(&dir.path().join(log.name()), &error.into()))?;
    Ok(Some(Rotation {
        log: dir.path().join(log.name()),
        older: log.older(1),
        length: left_out + kept,
        kept,
    }))
}

/// Opens a log that is over the limit.
fn open_large(dir: &LogDir, log: LogFile) -> io::Result<Option<(File, Metadata)>> {
    let Some(file) = dir.directory().open_file_with(log.name(), OFlags::RDWR)? else {
        return Ok(None);
    };
    dir.check(log.name(), &file)?;
    let meta = file.metadata()?;
    Ok((meta.len() > LOG_LIMIT).then_some((file, meta)))
}

/// Makes the copy the youngest of the older parts, and drops the oldest.
fn shift_parts(dir: &LogDir, log: LogFile, copy: &str) -> io::Result<()> {
    // Fails if one of the names belongs to a directory.
    let rename = |name: &str, other: &str| dir.directory().rename(name, dir.directory(), other);
    for number in (1..KEPT).rev() {
        if let Err(error) = rename(&log.older(number), &log.older(number + 1))
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
    }
    rename(copy, &log.older(1))
}

/// Copies the end of a log and what is added meanwhile. Returns the length of what is left out and of the copy.
fn copy_end(log: &mut File, mut copy: &File) -> io::Result<(u64, u64)> {
    let length = log.metadata()?.len();
    let start = match length.checked_sub(MOST) {
        Some(from @ 1..) => line_start(log, from, length)?,
        _ => 0,
    };
    log.seek(SeekFrom::Start(start))?;
    // The log may grow faster than it is copied.
    let copied = io::copy(&mut log.by_ref().take(2 * MOST), &mut copy)?;
    Ok((start, copied))
}

/// Returns the start of the first line at or after an offset, or the offset if there is none.
fn line_start(log: &mut File, from: u64, length: u64) -> io::Result<u64> {
    // The byte before shows if a line starts at the offset.
    let before = from - 1;
    log.seek(SeekFrom::Start(before))?;
    let mut rest = BufReader::new(log.by_ref().take(length - before));
    let begins = before + rest.skip_until(b'\n')? as u64;
    Ok(if begins < length { begins } else { from })
}

/// Gives the copy the owner and permissions of the log.
fn copy_permissions(copy: &File, log: &Metadata) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(log.uid()), Gid::from_raw(log.gid()));
    if copy.metadata()?.uid() != log.uid() || copy.metadata()?.gid() != log.gid() {
        fchown(copy.as_fd(), Some(uid), Some(gid))?;
    }
    let mode = Mode::from_raw_mode(log.mode() & 0o666);
    Ok(rustix::fs::fchmod(copy.as_fd(), mode)?)
}
