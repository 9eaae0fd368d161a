use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use jiff::civil::DateTime;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use super::read::split;
use super::{LogDir, LogFile, LogLine, Past, merge};
use crate::host::{Directory, in_path};

/// A line longer than this is shown in parts, in bytes.
const LONGEST_LINE: usize = 64 << 10;

/// Waits for what is added to a daemon's logs.
#[derive(Debug)]
pub struct Follower {
    dir: LogDir,
    watch: OwnedFd,
    logs: Vec<Growing>,
}

/// Why a wait ended.
#[derive(Debug)]
pub enum Woken {
    /// These lines are new.
    Lines(Vec<LogLine>),
    /// Whoever read the output has gone.
    ReaderGone,
    /// The directory was removed or moved away.
    DirectoryGone,
}

impl LogDir {
    /// The last lines of these logs, and whoever waits for more.
    ///
    /// # Errors
    /// The system's, also where one of the logs cannot be read.
    pub fn follow(
        self,
        logs: &[LogFile],
        lines: Option<usize>,
    ) -> io::Result<(Vec<Past>, Follower)> {
        // Watched first: nothing is written unseen between the last line and the first wait.
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let changes = WatchFlags::MODIFY
            | WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        // By its descriptor: what has come to lie at the path meanwhile may hang this process.
        let by_descriptor = |dir: &Directory| format!("/proc/self/fd/{}", dir.fd().as_raw_fd());
        inotify::add_watch(&watch, by_descriptor(&self.dir), changes)
            .map_err(|error| in_path(self.path(), &error.into()))?;
        // The directory's own end is told by the one above it alone, for as long as this one is held open. Who may
        // not look there learns of it from nobody.
        let ends = WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::ONLYDIR;
        let _ = inotify::add_watch(&watch, by_descriptor(&self.parent), ends);
        let mut pasts = Vec::new();
        let mut growing = Vec::new();
        for &log in logs {
            let mut past = self.last(log, lines, true)?;
            growing.push(Growing {
                log,
                offset: past.offset,
                file: past.file.take(),
                unfinished: Vec::new(),
                at: past.lines.last().and_then(|line| line.at),
            });
            pasts.push(past);
        }
        let follower = Follower {
            dir: self,
            watch,
            logs: growing,
        };
        Ok((pasts, follower))
    }
}

impl Follower {
    /// Waits for new lines, merged by time; `reader` is what they will be written to.
    ///
    /// # Errors
    /// The system's.
    pub fn wait(&mut self, reader: impl AsFd) -> io::Result<Woken> {
        loop {
            let mut new = Vec::new();
            for log in &mut self.logs {
                let grown = log.grown(&self.dir);
                new = merge(new, grown?);
            }
            if !new.is_empty() {
                return Ok(Woken::Lines(new));
            }
            let mut watched = [
                PollFd::new(&self.watch, PollFlags::IN),
                PollFd::from_borrowed_fd(reader.as_fd(), PollFlags::empty()),
            ];
            match poll(&mut watched, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if watched[1]
                .revents()
                .intersects(PollFlags::ERR | PollFlags::HUP)
            {
                return Ok(Woken::ReaderGone);
            }
            self.hear()?;
            if !self.dir.is_in_place()? {
                return Ok(Woken::DirectoryGone);
            }
        }
    }

    /// Takes all notices.
    fn hear(&self) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut notices = inotify::Reader::new(&self.watch, &mut buffer);
        loop {
            match notices.next() {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// One log that is followed.
#[derive(Debug)]
struct Growing {
    log: LogFile,
    file: Option<File>,
    /// Up to where it has been read.
    offset: u64,
    unfinished: Vec<u8>,
    at: Option<DateTime>,
}

impl Growing {
    /// The lines that were added since it was last looked at.
    fn grown(&mut self, dir: &LogDir) -> io::Result<Vec<LogLine>> {
        let there = dir.open_file(self.log.name())?;
        let mut bytes = std::mem::take(&mut self.unfinished);
        // Copied and truncated: what was not read yet stands in the copy.
        if let Some(file) = &self.file
            && length(file)? < self.offset
        {
            match dir.open_file(&self.log.older(1))? {
                Some(copy) if length(&copy)? >= self.offset => self.file = Some(copy),
                _ => self.offset = 0,
            }
        }
        // One that is no longer in its place is read to its end, and then the new one.
        let mut is_at_end = true;
        if let Some(file) = &mut self.file {
            self.offset = read_on(file, self.offset, &mut bytes)?;
            is_at_end = self.offset >= length(file)?;
        }
        let is_another = match (&self.file, &there) {
            (Some(old), Some(new)) => identity(old)? != identity(new)?,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if is_another
            && is_at_end
            && let Some(mut file) = there
        {
            self.offset = read_on(&mut file, 0, &mut bytes)?;
            self.file = Some(file);
        }
        let complete = match bytes.iter().rposition(|byte| *byte == b'\n') {
            Some(at) => at + 1,
            None if bytes.len() > LONGEST_LINE => bytes.len(),
            None => 0,
        };
        self.unfinished = bytes.split_off(complete);
        let mut lines = split(self.log, &bytes);
        for line in &mut lines {
            self.at = line.at.or(self.at);
            line.at = self.at;
        }
        Ok(lines)
    }
}

fn length(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.len())
}

fn identity(file: &File) -> io::Result<(u64, u64)> {
    let meta = file.metadata()?;
    Ok((meta.dev(), meta.ino()))
}

/// Reads what stands behind an offset; returns the new one. No more than a few MiB at once: the rest comes next.
fn read_on(file: &mut File, offset: u64, bytes: &mut Vec<u8>) -> io::Result<u64> {
    const AT_ONCE: u64 = 4 << 20;
    file.seek(SeekFrom::Start(offset))?;
    let read = file.take(AT_ONCE).read_to_end(bytes)?;
    Ok(offset + read as u64)
}
