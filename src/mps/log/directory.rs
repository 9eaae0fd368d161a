//! The log directory of a daemon: reading its logs, and rotating the large ones.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{FileType, Gid, Mode, OFlags, Uid, fchown, ftruncate};

use super::line::KEPT_OLDER_PARTS;
use super::{LogFile, LogLine};
use crate::host::{Directory, EntryKind, FileError, FileResult, modification_time};

/// The most of a log that is read at once, in bytes and in lines. A user may write without end into server.log, and
/// even an empty line takes a hundred bytes of memory.
const MAX_READ_BYTES: u64 = 64 << 20;
const MAX_READ_LINES: usize = 1_000_000;

/// The file with the name of the directory's device, which has no record after `down`.
const DEVICE_NAME: &str = "device-name";

/// The directory with a daemon's logs, which only root or the caller can change. The daemon's users can write to server.log
/// all the same, through NVIDIA's FIFO.
#[derive(Debug)]
pub struct LogDir {
    pub(crate) dir: Directory,
    /// The parent directory, which only root and the caller control.
    pub(crate) parent: Directory,
    /// The name of the directory in its parent.
    name: OsString,
}

/// The last lines of a log, and the position after them.
#[derive(Debug, Default)]
pub struct LogTail {
    pub lines: Vec<LogLine>,
    /// The reason if earlier lines could not be read.
    pub cut: Option<String>,
    pub(crate) file: Option<File>,
    pub(crate) offset: u64,
}

impl LogDir {
    /// Opens the directory. Refuses one of a user, who could put anything there. Errors name its path.
    pub fn open(path: &Path) -> FileResult<Self> {
        let name = path.file_name().unwrap_or_default().to_owned();
        let parent = Directory::open(path.parent().unwrap_or(path))?;
        match parent.open_child(&name)? {
            Some(dir) => {
                dir.check_owner()?;
                Ok(Self { dir, parent, name })
            }
            None => Err(FileError::from(io::ErrorKind::NotFound).at(path)),
        }
    }

    /// Writes the name of the device.
    pub fn write_device_name(&self, name: &str) -> FileResult<()> {
        let half_made = format!(".{DEVICE_NAME}");
        let dir = &self.dir;
        dir.replace_file(DEVICE_NAME, &half_made, name.as_bytes(), 0o644)
    }

    /// Returns the name of the device that the directory was last used for, if it is known.
    pub fn device_name(&self) -> Option<String> {
        let name = self.dir.read_file(DEVICE_NAME).ok()??;
        String::from_utf8(name).ok()
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// True if the directory is still at the path where it was opened.
    pub(crate) fn is_in_place(&self) -> FileResult<bool> {
        let opened = self.dir.stat_self()?;
        let now = self.parent.stat(&self.name);
        Ok(
            matches!(now, Ok(Some(now)) if (now.st_dev, now.st_ino) == (opened.st_dev, opened.st_ino)),
        )
    }

    /// Returns the length of a log in bytes, or 0 if there is none.
    pub fn log_length(&self, log: LogFile) -> u64 {
        self.length_and_mtime(log).map_or(0, |(length, _)| length)
    }

    /// Returns the length of a log in bytes and the time of its last write, or `None` if they cannot be read.
    pub fn length_and_mtime(&self, log: LogFile) -> Option<(u64, SystemTime)> {
        let meta = self.dir.stat(log.name()).ok()??;
        Some((meta.st_size.cast_unsigned(), modification_time(&meta)?))
    }

    /// Returns the last 200 lines of a log after its first `from` bytes, without blank ones, or nothing if it cannot be
    /// read.
    pub fn last_lines_after(&self, log: LogFile, from: u64) -> Vec<String> {
        const TAIL_BYTES: u64 = 16 << 10;
        let text = self.text_at_end(log.name(), from, TAIL_BYTES);
        let mut lines: Vec<String> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .map(str::to_owned)
            .collect();
        lines.split_off(lines.len().saturating_sub(200))
    }

    /// Returns the last `most` bytes of a log, including its youngest older part if needed.
    pub fn end_of(&self, log: LogFile, most: u64) -> String {
        let end = self.text_at_end(log.name(), 0, most);
        let missing = most.saturating_sub(end.len() as u64);
        if missing == 0 {
            return end;
        }
        self.text_at_end(&log.older_file_name(1), 0, missing) + &end
    }

    /// Returns the last `most` bytes of a file after its first `from` bytes, or nothing if it cannot be read.
    pub fn text_at_end(&self, name: &str, from: u64, most: u64) -> String {
        let bytes = self.bytes_at_end(name, from, most).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn bytes_at_end(&self, name: &str, from: u64, most: u64) -> FileResult<Vec<u8>> {
        let Some(mut file) = self.open_file(name)? else {
            return Ok(Vec::new());
        };
        let length = file.metadata()?.len();
        // A log that is shorter now has been rotated.
        let from = if from > length { 0 } else { from };
        let start = from.max(length.saturating_sub(most)).min(length);
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns the last lines of a log, including its older parts; all lines without a number. Omits an unfinished last
    /// line if the log will be followed. A missing log has no lines. Errors name the path.
    pub fn read_tail(
        &self,
        log: LogFile,
        lines: Option<usize>,
        followed: bool,
    ) -> FileResult<LogTail> {
        let mut tail = LogTail::default();
        let mut parts = Vec::new();
        let mut found = 0;
        let mut remaining = MAX_READ_BYTES;
        let names = std::iter::once(log.name().to_owned())
            .chain((1..=KEPT_OLDER_PARTS).map(|n| log.older_file_name(n)));
        for (age, name) in names.enumerate() {
            let missing = lines.unwrap_or(usize::MAX).saturating_sub(found);
            if age > 0 && missing == 0 {
                break;
            }
            let most = (remaining, MAX_READ_LINES.saturating_sub(found));
            let mut file = match self.open_file(&name) {
                Ok(Some(file)) => file,
                Ok(None) => continue,
                Err(error) if age > 0 => {
                    tail.cut = Some(error.to_string());
                    break;
                }
                Err(error) => return Err(error),
            };
            let (mut bytes, end, is_cut) = read_end(&mut file, missing, most)?;
            if age == 0 {
                tail.offset = end;
                if followed {
                    let complete = bytes
                        .iter()
                        .rposition(|byte| *byte == b'\n')
                        .map_or(0, |at| at + 1);
                    tail.offset -= (bytes.len() - complete) as u64;
                    bytes.truncate(complete);
                }
                tail.file = Some(file);
            }
            remaining = remaining.saturating_sub(bytes.len() as u64);
            let lines = parse_lines(log, &bytes);
            if is_cut {
                let nothing = if lines.is_empty() {
                    ", and no whole line in that"
                } else {
                    ""
                };
                tail.cut = Some(format!("{name} has more than is read at once{nothing}"));
            }
            found += lines.len();
            parts.push(lines);
            if is_cut {
                break;
            }
        }
        let all: Vec<LogLine> = parts.into_iter().rev().flatten().collect();
        let skipped = lines.map_or(0, |lines| all.len().saturating_sub(lines));
        tail.lines = fill_missing_times(all).split_off(skipped);
        Ok(tail)
    }

    /// Opens a file for reading. Returns `None` if there is none. A user may have linked another file here, so the file
    /// must belong to the owner of the directory and have no other name.
    pub(crate) fn open_file(&self, name: &str) -> FileResult<Option<File>> {
        let Some(file) = self.dir.open_file(name)? else {
            return Ok(None);
        };
        self.check_log_file(name, &file)?;
        Ok(Some(file))
    }

    /// Refuses a file that the owner of the directory has not written.
    pub(crate) fn check_log_file(&self, name: &str, file: &File) -> FileResult<()> {
        let meta = file.metadata()?;
        let why = if meta.nlink() > 1 {
            "it has other names"
        } else if meta.uid() != self.dir.stat_self()?.st_uid {
            "it does not belong to the owner of its directory"
        } else {
            return Ok(());
        };
        let error = FileError::new(io::ErrorKind::PermissionDenied, why);
        Err(error.at(&self.path().join(name)))
    }
}

/// Returns the end of a file with at least `lines` lines if it has them, the length of the file, and true if earlier
/// lines exceed the limits in bytes or lines.
fn read_end(
    file: &mut File,
    lines: usize,
    (most, most_lines): (u64, usize),
) -> FileResult<(Vec<u8>, u64, bool)> {
    const BLOCK: u64 = 64 << 10;
    let end = file.metadata()?.len();
    let mut start = end;
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    // One more than requested: the first may be the end of a line only.
    let mut newlines = 0_usize;
    while start > 0 && newlines <= lines && newlines < most_lines && end - start < most {
        let length = BLOCK.min(start);
        start -= length;
        let mut block = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        file.by_ref().take(length).read_to_end(&mut block)?;
        newlines += block.split(|byte| *byte == b'\n').count() - 1;
        blocks.push(block);
    }
    let mut bytes: Vec<u8> = blocks.into_iter().rev().flatten().collect();
    let is_cut = start > 0 && newlines <= lines;
    if start > 0 {
        let first = bytes
            .iter()
            .position(|byte| *byte == b'\n')
            .map_or(bytes.len(), |at| at + 1);
        bytes.drain(..first);
    }
    Ok((bytes, end, is_cut))
}

/// Splits bytes into lines. Text that is not UTF-8 gets replacement characters.
pub(crate) fn parse_lines(log: LogFile, bytes: &[u8]) -> Vec<LogLine> {
    let text = String::from_utf8_lossy(bytes);
    text.lines().map(|line| LogLine::parse(log, line)).collect()
}

/// Gives lines without a head the time of the line before them.
fn fill_missing_times(mut lines: Vec<LogLine>) -> Vec<LogLine> {
    let mut at = None;
    for line in &mut lines {
        at = line.at.or(at);
        line.at = at;
    }
    lines
}

/// The size in bytes at which a log is rotated. With a client connected, a query by `status` adds about 1,000 bytes to
/// control.log: one every 15 s fills the limit in a day and a half, so the log and its three older parts cover most of a
/// week. On a node with 56 devices all logs together stay below 4 GiB.
pub const MAX_LOG_BYTES: u64 = 8 << 20;

/// The most that is copied of a log's end, in bytes. A user may have written without end into server.log.
const MAX_COPIED_BYTES: u64 = 4 * MAX_LOG_BYTES;

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
pub fn rotate_logs(dir: &LogDir) -> Vec<FileResult<Rotation>> {
    LogFile::ALL
        .into_iter()
        .filter_map(|log| rotate_log(dir, log).transpose())
        .collect()
}

/// True if one of the logs has grown over the limit, or is not a regular file.
pub fn needs_rotation(dir: &LogDir) -> bool {
    LogFile::ALL
        .into_iter()
        .any(|log| match dir.dir.stat(log.name()) {
            Ok(Some(meta)) => {
                let is_file = FileType::from_raw_mode(meta.st_mode) == FileType::RegularFile;
                !is_file || meta.st_size.cast_unsigned() > MAX_LOG_BYTES
            }
            Ok(None) => false,
            Err(_) => true,
        })
}

/// Rotates a log that is over the limit.
fn rotate_log(dir: &LogDir, log: LogFile) -> FileResult<Option<Rotation>> {
    let Some(mut file) = dir.dir.open_file_with(log.name(), OFlags::RDWR)? else {
        return Ok(None);
    };
    dir.check_log_file(log.name(), &file)?;
    let meta = file.metadata()?;
    if meta.len() <= MAX_LOG_BYTES {
        return Ok(None);
    }
    // Under a name of its own first: an unfinished copy must not pass for a part of the log.
    let copy_name = format!("{}.new", log.name());
    let copy_name = dir.dir.free_unfinished(&copy_name, EntryKind::File);
    let copy = dir.dir.create_file(&copy_name, 0o600)?;
    let rotated = copy_end(&mut file, &copy)
        .and_then(|copied| copy_permissions(&copy, &meta).map(|()| copied))
        .map_err(|error| error.at(&dir.path().join(&copy_name)))
        .and_then(|copied| shift_parts(dir, log, &copy_name).map(|()| copied));
    if rotated.is_err() {
        // An unfinished copy is of no use, and the disk may be full.
        let _ = dir.dir.remove_file(&copy_name);
    }
    let (left_out, kept) = rotated?;
    ftruncate(&file, 0).map_err(|error| FileError::from(error).at(&dir.path().join(log.name())))?;
    Ok(Some(Rotation {
        log: dir.path().join(log.name()),
        older: log.older_file_name(1),
        length: left_out + kept,
        kept,
    }))
}

/// Makes the copy the youngest of the older parts, and drops the oldest.
fn shift_parts(dir: &LogDir, log: LogFile, copy: &str) -> FileResult<()> {
    let dir = &dir.dir;
    // Renaming fails if one of the names belongs to a directory.
    for number in (1..KEPT_OLDER_PARTS).rev() {
        if let Err(error) = dir.rename(
            log.older_file_name(number),
            dir,
            log.older_file_name(number + 1),
        ) && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
    }
    dir.rename(copy, dir, log.older_file_name(1))
}

/// Copies the end of a log and what is added meanwhile. Returns the length of what is left out and of the copy.
fn copy_end(log: &mut File, mut copy: &File) -> FileResult<(u64, u64)> {
    let length = log.metadata()?.len();
    let start = match length.checked_sub(MAX_COPIED_BYTES) {
        Some(from @ 1..) => line_start(log, from, length)?,
        _ => 0,
    };
    log.seek(SeekFrom::Start(start))?;
    // The log may grow faster than it is copied.
    let copied = io::copy(&mut log.by_ref().take(2 * MAX_COPIED_BYTES), &mut copy)?;
    Ok((start, copied))
}

/// Returns the start of the first line at or after an offset, or the offset if there is none.
fn line_start(log: &mut File, from: u64, length: u64) -> FileResult<u64> {
    // The byte before shows if a line starts at the offset.
    let before = from - 1;
    log.seek(SeekFrom::Start(before))?;
    let mut rest = BufReader::new(log.by_ref().take(length - before));
    let begins = before + rest.skip_until(b'\n')? as u64;
    Ok(if begins < length { begins } else { from })
}

/// Gives the copy the owner and permissions of the log.
fn copy_permissions(copy: &File, log: &Metadata) -> FileResult<()> {
    let (uid, gid) = (Uid::from_raw(log.uid()), Gid::from_raw(log.gid()));
    if copy.metadata()?.uid() != log.uid() || copy.metadata()?.gid() != log.gid() {
        fchown(copy.as_fd(), Some(uid), Some(gid))?;
    }
    let mode = Mode::from_raw_mode(log.mode() & 0o666);
    Ok(rustix::fs::fchmod(copy.as_fd(), mode)?)
}
