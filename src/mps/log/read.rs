use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::LogLine;
use super::server::logged_fault;
use crate::host::{Directory, Pid, in_path};
use crate::mps::glance::ENOUGH_LOG;

/// A daemon's two logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFile {
    /// What the control daemon writes.
    Control,
    /// What servers and clients write; the daemon copies it there.
    Server,
}

impl LogFile {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Control, Self::Server];

    /// Its name in the log directory.
    pub fn name(self) -> &'static str {
        match self {
            Self::Control => "control.log",
            Self::Server => "server.log",
        }
    }

    /// The name of an older part of it: 1 is the youngest.
    pub(super) fn older(self, number: u32) -> String {
        format!("{}.{number}", self.name())
    }
}

/// How many older parts of a log are kept.
pub(super) const KEPT: u32 = 3;

/// No more of a log than this is ever read at once, in bytes and in lines: whoever owns the directory may put
/// anything there, and a line takes a hundred bytes even if it is empty.
const MOST: u64 = 64 << 20;
const MOST_LINES: usize = 1_000_000;

/// A directory with a daemon's logs. It may belong to a user who puts anything there.
#[derive(Debug)]
pub struct LogDir {
    pub(super) dir: Directory,
    /// The directory around it, which only root and the caller control, and its name in there.
    pub(super) parent: Directory,
    name: OsString,
}

/// The last lines of a log, and where what follows will stand.
#[derive(Debug, Default)]
pub struct Past {
    /// The lines.
    pub lines: Vec<LogLine>,
    /// Why what stands before them could not be read, where that is so.
    pub cut: Option<String>,
    pub(super) file: Option<File>,
    pub(super) offset: u64,
}

impl LogDir {
    /// Opens it.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn open(path: &Path) -> io::Result<Self> {
        let name = path.file_name().unwrap_or_default().to_owned();
        let parent = Directory::open(path.parent().unwrap_or(path))?;
        let missing = || in_path(path, &io::ErrorKind::NotFound.into());
        let dir = parent.child(&name)?.ok_or_else(missing)?;
        Ok(Self { dir, parent, name })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// True if it still lies where it was opened.
    pub(super) fn is_in_place(&self) -> io::Result<bool> {
        let opened = self.dir.stat_self()?;
        let there = self.parent.stat(&self.name);
        Ok(
            matches!(there, Ok(Some(there)) if (there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino)),
        )
    }

    /// The length of a log in bytes; 0 if there is none.
    pub fn length(&self, log: LogFile) -> u64 {
        self.mark(log).map_or(0, |(length, _)| length)
    }

    /// The length of a log in bytes, and when it was last written; `None` if that cannot be seen.
    pub fn mark(&self, log: LogFile) -> Option<(u64, SystemTime)> {
        let meta = self.dir.stat(log.name()).ok()??;
        let seconds = u64::try_from(meta.st_mtime).ok()?;
        let nanoseconds = u32::try_from(meta.st_mtime_nsec).ok()?;
        let written = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
        Some((meta.st_size.cast_unsigned(), written))
    }

    /// The last lines of a log after its first `from` bytes, without blank ones; none if it cannot be read.
    pub fn tail(&self, log: LogFile, from: u64, lines: usize) -> Vec<String> {
        const ENOUGH: u64 = 16 << 10;
        let text = self.end(log.name(), from, ENOUGH);
        let lines_of = || text.lines().filter(|line| !line.trim().is_empty());
        let skipped = lines_of().count().saturating_sub(lines);
        lines_of().skip(skipped).map(str::to_owned).collect()
    }

    /// The last `most` bytes of a log, and of what was put aside before it as much as is missing.
    pub fn end_of(&self, log: LogFile, most: u64) -> String {
        let end = self.end(log.name(), 0, most);
        let missing = most.saturating_sub(end.len() as u64);
        if missing == 0 {
            return end;
        }
        self.end(&log.older(1), 0, missing) + &end
    }

    /// True if a server has met a fault that it has not got over.
    pub fn has_fault(&self, server: Pid) -> bool {
        logged_fault(&self.end_of(LogFile::Server, ENOUGH_LOG), server)
    }

    /// The last `most` bytes of a file after its first `from`; nothing if it cannot be read.
    pub fn end(&self, name: &str, from: u64, most: u64) -> String {
        let read = || -> io::Result<Vec<u8>> {
            let Some(mut file) = self.open_file(name)? else {
                return Ok(Vec::new());
            };
            let length = file.metadata()?.len();
            // A log that is shorter now has been begun anew.
            let from = if from > length { 0 } else { from };
            let start = from.max(length.saturating_sub(most)).min(length);
            file.seek(SeekFrom::Start(start))?;
            let mut bytes = Vec::new();
            file.take(most).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
    }

    /// The last lines of a log, older parts of it included; all of them without a number. A last line that is still
    /// being written belongs to them unless the log is going to be followed.
    ///
    /// # Errors
    /// The system's, with the path. A log that is not there has no lines.
    pub fn last(&self, log: LogFile, lines: Option<usize>, followed: bool) -> io::Result<Past> {
        let read = || {
            let mut past = Past::default();
            let mut parts = Vec::new();
            let mut found = 0;
            let mut left = MOST;
            let names =
                std::iter::once(log.name().to_owned()).chain((1..=KEPT).map(|n| log.older(n)));
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
                        past.cut = Some(error.to_string());
                        break;
                    }
                    Err(error) => return Err(error),
                };
                let (mut bytes, end, is_cut) = tail(&mut file, missing, most)?;
                if age == 0 {
                    past.offset = end;
                    if followed {
                        let complete = bytes
                            .iter()
                            .rposition(|byte| *byte == b'\n')
                            .map_or(0, |at| at + 1);
                        past.offset -= (bytes.len() - complete) as u64;
                        bytes.truncate(complete);
                    }
                    past.file = Some(file);
                }
                left = left.saturating_sub(bytes.len() as u64);
                let lines = split(log, &bytes);
                if is_cut {
                    let nothing = if lines.is_empty() {
                        ", and no whole line in that"
                    } else {
                        ""
                    };
                    past.cut = Some(format!("{name} has more than is read at once{nothing}"));
                }
                found += lines.len();
                parts.push(lines);
                if is_cut {
                    break;
                }
            }
            let all: Vec<LogLine> = parts.into_iter().rev().flatten().collect();
            let skipped = lines.map_or(0, |lines| all.len().saturating_sub(lines));
            past.lines = with_times(all).split_off(skipped);
            Ok(past)
        };
        read()
    }

    /// Opens a file for reading; `None` if there is none. A user may have given another file's data a name here, so
    /// it must belong to the owner of the directory and have no other name.
    pub(super) fn open_file(&self, name: &str) -> io::Result<Option<File>> {
        let Some(file) = self.dir.open_file(name)? else {
            return Ok(None);
        };
        self.check(name, &file)?;
        Ok(Some(file))
    }

    /// Refuses a file that the owner of the directory has not written.
    pub(super) fn check(&self, name: &str, file: &File) -> io::Result<()> {
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

/// The end of a file with at least so many lines if it has them, its length, and whether the start was left out for
/// its size, in bytes or lines.
fn tail(
    file: &mut File,
    lines: usize,
    (most, most_lines): (u64, usize),
) -> io::Result<(Vec<u8>, u64, bool)> {
    const BLOCK: u64 = 64 << 10;
    let end = file.metadata()?.len();
    let mut start = end;
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    // One more than wanted: the first may be only the end of a line.
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

/// Lines out of bytes. Text that is no UTF-8 is shown with replacement characters.
pub(super) fn split(log: LogFile, bytes: &[u8]) -> Vec<LogLine> {
    let text = String::from_utf8_lossy(bytes);
    text.lines().map(|line| LogLine::parse(log, line)).collect()
}

/// Lines without a head were written with the line before them.
fn with_times(mut lines: Vec<LogLine>) -> Vec<LogLine> {
    let mut at = None;
    for line in &mut lines {
        at = line.at.or(at);
        line.at = at;
    }
    lines
}
