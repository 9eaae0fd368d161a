use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::line::{KEPT, LOG_END, logged_fault};
use super::{LogFile, LogLine};
use crate::host::{Directory, Pid, in_path};

/// The most of a log that is read at once, in bytes and in lines. The owner of the directory may put anything there, and
/// even an empty line takes a hundred bytes of memory.
const MOST: u64 = 64 << 20;
const MOST_LINES: usize = 1_000_000;

/// The directory with a daemon's logs. It may belong to a user who puts anything there.
#[derive(Debug)]
pub struct LogDir {
    dir: Directory,
    /// The parent directory, which only root and the caller control.
    parent: Directory,
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
    /// Opens the directory. Errors name its path.
    pub fn open(path: &Path) -> io::Result<Self> {
        let name = path.file_name().unwrap_or_default().to_owned();
        let parent = Directory::open(path.parent().unwrap_or(path))?;
        let missing = || in_path(path, &io::ErrorKind::NotFound.into());
        let dir = parent.child(&name)?.ok_or_else(missing)?;
        Ok(Self { dir, parent, name })
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.dir
    }

    pub(crate) fn parent(&self) -> &Directory {
        &self.parent
    }

    /// True if the directory is still at the path where it was opened.
    pub(crate) fn is_in_place(&self) -> io::Result<bool> {
        let opened = self.dir.stat_self()?;
        let now = self.parent.stat(&self.name);
        Ok(
            matches!(now, Ok(Some(now)) if (now.st_dev, now.st_ino) == (opened.st_dev, opened.st_ino)),
        )
    }

    /// Returns the length of a log in bytes, or 0 if there is none.
    pub fn length(&self, log: LogFile) -> u64 {
        self.mark(log).map_or(0, |(length, _)| length)
    }

    /// Returns the length of a log in bytes and the time of its last write, or `None` if they cannot be read.
    pub fn mark(&self, log: LogFile) -> Option<(u64, SystemTime)> {
        let meta = self.dir.stat(log.name()).ok()??;
        let seconds = u64::try_from(meta.st_mtime).ok()?;
        let nanoseconds = u32::try_from(meta.st_mtime_nsec).ok()?;
        let written = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
        Some((meta.st_size.cast_unsigned(), written))
    }

    /// Returns the last lines of a log after its first `from` bytes, without blank ones, or nothing if it cannot be read.
    pub fn tail(&self, log: LogFile, from: u64, lines: usize) -> Vec<String> {
        const ENOUGH: u64 = 16 << 10;
        let text = self.end(log.name(), from, ENOUGH);
        let lines_of = || text.lines().filter(|line| !line.trim().is_empty());
        let skipped = lines_of().count().saturating_sub(lines);
        lines_of().skip(skipped).map(str::to_owned).collect()
    }

    /// Returns the last `most` bytes of a log, including its youngest older part if needed.
    pub fn end_of(&self, log: LogFile, most: u64) -> String {
        let end = self.end(log.name(), 0, most);
        let missing = most.saturating_sub(end.len() as u64);
        if missing == 0 {
            return end;
        }
        self.end(&log.older(1), 0, missing) + &end
    }

    /// True if a server has had a fatal fault and has not recovered.
    pub fn has_fault(&self, server: Pid) -> bool {
        logged_fault(&self.end_of(LogFile::Server, LOG_END), server)
    }

    /// Returns the last `most` bytes of a file after its first `from` bytes, or nothing if it cannot be read.
    pub fn end(&self, name: &str, from: u64, most: u64) -> String {
        let read = || -> io::Result<Vec<u8>> {
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
        };
        String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
    }

    /// Returns the last lines of a log, including its older parts; all lines without a number. Omits an unfinished last
    /// line if the log will be followed. A missing log has no lines. Errors name the path.
    pub fn last(&self, log: LogFile, lines: Option<usize>, followed: bool) -> io::Result<LogTail> {
        let mut tail = LogTail::default();
        let mut parts = Vec::new();
        let mut found = 0;
        let mut left = MOST;
        let names = std::iter::once(log.name().to_owned()).chain((1..=KEPT).map(|n| log.older(n)));
        for (age, name) in names.enumerate() {
            let missing = lines.unwrap_or(usize::MAX).saturating_sub(found);
            if age > 0 && missing == 0 {
                break;
            }
            let most = (left, MOST_LINES.saturating_sub(found));
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
            left = left.saturating_sub(bytes.len() as u64);
            let lines = split(log, &bytes);
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
        tail.lines = with_times(all).split_off(skipped);
        Ok(tail)
    }

    /// Opens a file for reading. Returns `None` if there is none. A user may have linked another file here, so the file
    /// must belong to the owner of the directory and have no other name.
    pub(crate) fn open_file(&self, name: &str) -> io::Result<Option<File>> {
        let Some(file) = self.dir.open_file(name)? else {
            return Ok(None);
        };
        self.check(name, &file)?;
        Ok(Some(file))
    }

    /// Refuses a file that the owner of the directory has not written.
    pub(crate) fn check(&self, name: &str, file: &File) -> io::Result<()> {
        let meta = file.metadata()?;
        let why = if meta.nlink() > 1 {
            "it has other names"
        } else if meta.uid() != self.dir.stat_self()?.st_uid {
            "it does not belong to the owner of its directory"
        } else {
            return Ok(());
        };
        let error = io::Error::new(io::ErrorKind::PermissionDenied, why);
        Err(in_path(&self.path().join(name), &error))
    }
}

/// Returns the end of a file with at least `lines` lines if it has them, the length of the file, and true if earlier
/// lines exceed the limits in bytes or lines.
fn read_end(
    file: &mut File,
    lines: usize,
    (most, most_lines): (u64, usize),
) -> io::Result<(Vec<u8>, u64, bool)> {
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
pub(crate) fn split(log: LogFile, bytes: &[u8]) -> Vec<LogLine> {
    let text = String::from_utf8_lossy(bytes);
    text.lines().map(|line| LogLine::parse(log, line)).collect()
}

/// Gives lines without a head the time of the line before them.
fn with_times(mut lines: Vec<LogLine>) -> Vec<LogLine> {
    let mut at = None;
    for line in &mut lines {
        at = line.at.or(at);
        line.at = at;
    }
    lines
}
