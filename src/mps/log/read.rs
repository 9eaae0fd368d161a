use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, openat};

use super::LogLine;
use crate::host::{end_of, in_path};

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

/// A directory with a daemon's logs. It may belong to a user who puts anything there: links are not followed, and
/// what is no file is not opened.
#[derive(Debug)]
pub struct LogDir {
    pub(super) dir: OwnedFd,
    pub(super) path: PathBuf,
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
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|error| in_path(path, &error.into()))?;
        Ok(Self {
            dir,
            path: path.to_owned(),
        })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it still lies where it was opened.
    pub(super) fn is_in_place(&self) -> io::Result<bool> {
        let opened = rustix::fs::fstat(&self.dir)?;
        let there = std::fs::symlink_metadata(&self.path);
        Ok(there.is_ok_and(|there| (there.dev(), there.ino()) == (opened.st_dev, opened.st_ino)))
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
                        past.cut = Some(format!("{name}: {error}"));
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
        read().map_err(|error| in_path(&self.path.join(log.name()), &error))
    }

    /// Opens a file for reading; `None` where there is none.
    pub(super) fn open_file(&self, name: &str) -> io::Result<Option<File>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.dir, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(rustix::io::Errno::LOOP) => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "it is a link: not followed",
                ));
            }
            Err(error) => return Err(error.into()),
        };
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it is no regular file",
            ));
        }
        Ok(Some(file))
    }
}

/// The last `most` bytes of a log; of what was put aside before, as much as is missing to that.
pub fn end_of_log(dir: &Path, log: LogFile, most: u64) -> String {
    let end = end_of(&dir.join(log.name()), 0, most);
    let missing = most.saturating_sub(end.len() as u64);
    if missing == 0 {
        return end;
    }
    end_of(&dir.join(log.older(1)), 0, missing) + &end
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
