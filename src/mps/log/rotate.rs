use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::fs::{FileType, Gid, Mode, OFlags, Uid, fchown, ftruncate};

use super::read::KEPT;
use super::{LogDir, LogFile};
use crate::host::in_path;

/// How large a log may grow, in bytes, before what it holds is put aside. A question by `status` costs about 900 bytes of
/// control.log where a client is: one every 15 s fills this in a day and a half, so the log and its three older parts
/// hold most of a week. On a node with 56 devices all logs together stay below 4 GiB.
pub const LOG_LIMIT: u64 = 8 << 20;

/// No more than this is ever copied, in bytes: the end of a log counts, and the owner of the directory may have made
/// a file of any size.
const MOST: u64 = 4 * LOG_LIMIT;

/// A log that was put aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutAside {
    /// Where it lies.
    pub log: PathBuf,
    /// The name of what it held.
    pub older: String,
    /// How much it held, in bytes.
    pub held: u64,
    /// How much of that was kept, its end, in bytes.
    pub kept: u64,
}

impl LogDir {
    /// Puts aside what the logs hold that have grown over the limit: copied to `control.log.1` and truncated, since
    /// the daemon keeps its file open and only appends. Lines that it writes between the two are lost. Returns those
    /// that were, and those that could not be: the system's error, or `PermissionDenied` where something else lies in
    /// a log's place, with the path.
    ///
    /// The directory may belong to a user, whose every trick ends at himself: nothing is followed, and only regular
    /// files with one link that belong to whoever the directory belongs to are touched. (The directory's own owner is
    /// ours to say: it lies in one that only we can write to.)
    pub fn rotate(&self) -> Vec<io::Result<PutAside>> {
        let logs = LogFile::ALL.into_iter();
        logs.filter_map(|log| self.rotate_one(log).transpose())
            .collect()
    }

    /// True if one of the logs has grown over the limit, or something else lies in its place.
    pub fn is_due(&self) -> bool {
        LogFile::ALL
            .into_iter()
            .any(|log| match self.dir.stat(log.name()) {
                Ok(Some(meta)) => {
                    let is_file = FileType::from_raw_mode(meta.st_mode) == FileType::RegularFile;
                    !is_file || meta.st_size.cast_unsigned() > LOG_LIMIT
                }
                Ok(None) => false,
                Err(_) => true,
            })
    }

    fn rotate_one(&self, log: LogFile) -> io::Result<Option<PutAside>> {
        let Some((mut file, meta)) = self.open_large(log)? else {
            return Ok(None);
        };
        // Under a name of its own first: half a copy is never taken for a part of the log.
        let copy_name = format!("{}.new", log.name());
        let copy = self.begin_copy(&copy_name)?;
        let done = copy_end(&mut file, &copy)
            .and_then(|copied| give(&copy, &meta).map(|()| copied))
            .map_err(|error| in_path(&self.path().join(&copy_name), &error))
            .and_then(|copied| self.put_in_line(log, &copy_name).map(|()| copied));
        let (left_out, kept) = match done {
            Ok(copied) => copied,
            Err(error) => {
                // Half a copy helps nobody, and the disk may be full.
                let _ = self.dir.remove_file(&copy_name);
                return Err(error);
            }
        };
        ftruncate(&file, 0)
            .map_err(|error| in_path(&self.path().join(log.name()), &error.into()))?;
        Ok(Some(PutAside {
            log: self.path().join(log.name()),
            older: log.older(1),
            held: left_out + kept,
            kept,
        }))
    }

    /// Opens a log that is over the limit.
    fn open_large(&self, log: LogFile) -> io::Result<Option<(File, Metadata)>> {
        let Some(file) = self.dir.open_file_with(log.name(), OFlags::RDWR)? else {
            return Ok(None);
        };
        self.check(log.name(), &file)?;
        let meta = file.metadata()?;
        Ok((meta.len() > LOG_LIMIT).then_some((file, meta)))
    }

    /// A new file for a copy.
    fn begin_copy(&self, name: &str) -> io::Result<File> {
        self.dir.remove_file(name)?;
        self.dir.create_file(name, 0o600)
    }

    /// Makes a copy the youngest of the older parts; the oldest goes.
    fn put_in_line(&self, log: LogFile, copy: &str) -> io::Result<()> {
        for number in (1..KEPT).rev() {
            match self.put(&log.older(number), &log.older(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.put(copy, &log.older(1))
    }

    /// Gives a file another name. A directory takes no file's place, and no file a directory's.
    fn put(&self, name: &str, other: &str) -> io::Result<()> {
        self.dir.rename(name, &self.dir, other)
    }
}

/// Copies the end of a log, with what is added meanwhile; returns how much stands before that, and how much it is.
fn copy_end(log: &mut File, mut copy: &File) -> io::Result<(u64, u64)> {
    let length = log.metadata()?.len();
    let start = match length.checked_sub(MOST) {
        Some(from @ 1..) => whole_line(log, from, length)?,
        _ => 0,
    };
    log.seek(SeekFrom::Start(start))?;
    // A log that grows faster than it is copied is not followed for ever.
    let copied = io::copy(&mut log.by_ref().take(2 * MOST), &mut copy)?;
    Ok((start, copied))
}

/// Where the first line from there on begins; there, if none does.
fn whole_line(log: &mut File, from: u64, length: u64) -> io::Result<u64> {
    // Where a line ends right before it, one begins there.
    let before = from - 1;
    log.seek(SeekFrom::Start(before))?;
    let mut rest = BufReader::new(log.by_ref().take(length - before));
    let begins = before + rest.skip_until(b'\n')? as u64;
    Ok(if begins < length { begins } else { from })
}

/// Gives the copy the owner and permissions of the log.
fn give(copy: &File, log: &Metadata) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(log.uid()), Gid::from_raw(log.gid()));
    if copy.metadata()?.uid() != log.uid() || copy.metadata()?.gid() != log.gid() {
        fchown(copy.as_fd(), Some(uid), Some(gid))?;
    }
    let mode = Mode::from_raw_mode(log.mode() & 0o666);
    Ok(rustix::fs::fchmod(copy.as_fd(), mode)?)
}
