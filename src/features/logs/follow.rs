//! New lines of logs as they are written, and lines of several logs by time.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use jiff::civil::DateTime;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use crate::host::{Directory, FileError, FileResult};
use crate::mps::{LogDir, LogFile, LogLine, LogTail, parse_lines};

/// The longest line in bytes. A longer one is shown in parts.
const MAX_LINE_BYTES: usize = 64 << 10;

/// Waits for new lines in a daemon's logs.
#[derive(Debug)]
pub struct Follower {
    dir: LogDir,
    watch: OwnedFd,
    logs: Vec<FollowedLog>,
}

/// The reason for the end of a wait.
#[derive(Debug)]
pub enum FollowEvent {
    Lines(Vec<LogLine>),
    /// The reader of the output has exited.
    ReaderGone,
    /// The directory was removed or moved away.
    DirectoryGone,
}

impl Follower {
    /// Returns the last lines of these logs, and a follower for later ones.
    pub fn start(
        dir: LogDir,
        logs: &[LogFile],
        lines: Option<usize>,
    ) -> FileResult<(Vec<LogTail>, Self)> {
        // The watch comes first, so no line is missed between reading the logs and the first wait.
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let changes = WatchFlags::MODIFY
            | WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        // By its descriptor: whatever is at the path now could hang this process.
        inotify::add_watch(&watch, descriptor_path(&dir.dir), changes)
            .map_err(|error| FileError::from(error).at(dir.path()))?;
        // While the directory is open, only its parent reports its removal. Without permission for the parent the
        // removal goes unnoticed.
        let removals = WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::ONLYDIR;
        let _ = inotify::add_watch(&watch, descriptor_path(&dir.parent), removals);
        let mut tails = Vec::new();
        let mut followed = Vec::new();
        for &log in logs {
            let mut tail = dir.read_tail(log, lines, true)?;
            followed.push(FollowedLog {
                log,
                offset: tail.offset,
                file: tail.file.take(),
                unfinished: Vec::new(),
                at: tail.lines.last().and_then(|line| line.at),
            });
            tails.push(tail);
        }
        let this = Self {
            dir,
            watch,
            logs: followed,
        };
        Ok((tails, this))
    }

    /// Waits for new lines, and returns them in order of time. Also returns if the reader of `output` exits.
    pub fn wait(&mut self, output: impl AsFd) -> FileResult<FollowEvent> {
        loop {
            let mut new = Vec::new();
            for log in &mut self.logs {
                let lines = log.read_new(&self.dir)?;
                new = merge_by_time(new, lines);
            }
            if !new.is_empty() {
                return Ok(FollowEvent::Lines(new));
            }
            let mut watched = [
                PollFd::new(&self.watch, PollFlags::IN),
                PollFd::from_borrowed_fd(output.as_fd(), PollFlags::empty()),
            ];
            match poll(&mut watched, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if watched[1]
                .revents()
                .intersects(PollFlags::ERR | PollFlags::HUP)
            {
                return Ok(FollowEvent::ReaderGone);
            }
            self.discard_events()?;
            if !self.dir.is_in_place()? {
                return Ok(FollowEvent::DirectoryGone);
            }
        }
    }

    /// Discards all pending events of the watch.
    fn discard_events(&self) -> FileResult<()> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.watch, &mut buffer);
        loop {
            match events.next() {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn descriptor_path(dir: &Directory) -> String {
    format!("/proc/self/fd/{}", dir.fd().as_raw_fd())
}

#[derive(Debug)]
struct FollowedLog {
    log: LogFile,
    file: Option<File>,
    /// The end of what has been read.
    offset: u64,
    unfinished: Vec<u8>,
    at: Option<DateTime>,
}

impl FollowedLog {
    /// Reads the lines that were added since the last call.
    fn read_new(&mut self, dir: &LogDir) -> FileResult<Vec<LogLine>> {
        let current = dir.open_file(self.log.name())?;
        let mut bytes = std::mem::take(&mut self.unfinished);
        // After a rotation, what was not read yet is in the copy.
        if let Some(file) = &self.file
            && file_length(file)? < self.offset
        {
            match dir.open_file(&self.log.older_file_name(1))? {
                Some(copy) if file_length(&copy)? >= self.offset => self.file = Some(copy),
                _ => self.offset = 0,
            }
        }
        // A log that was replaced is read to its end before the new one.
        let mut is_at_end = true;
        if let Some(file) = &mut self.file {
            self.offset = read_from(file, self.offset, &mut bytes)?;
            is_at_end = self.offset >= file_length(file)?;
        }
        let is_replaced = match (&self.file, &current) {
            (Some(old), Some(new)) => file_identity(old)? != file_identity(new)?,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if is_replaced
            && is_at_end
            && let Some(mut file) = current
        {
            self.offset = read_from(&mut file, 0, &mut bytes)?;
            self.file = Some(file);
        }
        let complete = match bytes.iter().rposition(|byte| *byte == b'\n') {
            Some(at) => at + 1,
            None if bytes.len() > MAX_LINE_BYTES => bytes.len(),
            None => 0,
        };
        self.unfinished = bytes.split_off(complete);
        let mut lines = parse_lines(self.log, &bytes);
        for line in &mut lines {
            self.at = line.at.or(self.at);
            line.at = self.at;
        }
        Ok(lines)
    }
}

fn file_length(file: &File) -> FileResult<u64> {
    Ok(file.metadata()?.len())
}

fn file_identity(file: &File) -> FileResult<(u64, u64)> {
    let meta = file.metadata()?;
    Ok((meta.dev(), meta.ino()))
}

/// Reads from an offset at most a few MiB, and returns the offset of the rest.
fn read_from(file: &mut File, offset: u64, bytes: &mut Vec<u8>) -> FileResult<u64> {
    const AT_ONCE: u64 = 4 << 20;
    file.seek(SeekFrom::Start(offset))?;
    let read = file.take(AT_ONCE).read_to_end(bytes)?;
    Ok(offset + read as u64)
}

/// Merges two logs by time. The lines of each log keep their order even if the clock was set back.
pub fn merge_by_time(one: Vec<LogLine>, other: Vec<LogLine>) -> Vec<LogLine> {
    let mut merged = Vec::with_capacity(one.len() + other.len());
    let (mut one, mut other) = (one.into_iter().peekable(), other.into_iter().peekable());
    loop {
        let next = match (one.peek(), other.peek()) {
            (Some(a), Some(b)) if b.at < a.at => other.next(),
            (Some(_), _) => one.next(),
            (None, _) => other.next(),
        };
        match next {
            Some(line) => merged.push(line),
            None => return merged,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_logs_are_merged_by_time_and_each_keeps_its_order() {
        let control = vec![
            LogLine::example("04.000", "a"),
            LogLine::example("06.000", "b"),
            LogLine::example("05.000", "b, the clock was set back"),
        ];
        let server = vec![
            LogLine::example("04.000", "x"),
            LogLine::example("05.500", "y"),
        ];
        let texts: Vec<Box<str>> = merge_by_time(control, server)
            .into_iter()
            .map(|line| line.text)
            .collect();
        let wanted = ["a", "x", "y", "b", "b, the clock was set back"];
        assert_eq!(texts, wanted.map(Box::from));
    }
}
