use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Uid, fchown, ftruncate, openat, renameat, statat,
    unlinkat,
};
use rustix::io::Errno;

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

impl LogDir {
    /// Puts aside what the logs hold that have grown over the limit: copied to `control.log.1` and truncated, since
    /// the daemon keeps its file open and only appends. Lines that it writes between the two are lost. Returns the
    /// names of those that were. One log that cannot be put aside does not keep the other from it.
    ///
    /// The directory may belong to a user, whose every trick ends at himself: nothing is followed, and only regular
    /// files with one link that belong to whoever the directory belongs to are touched. (The directory's own owner is
    /// ours to say: it lies in one that only we can write to.)
    ///
    /// # Errors
    /// The system's, or `PermissionDenied` where something else lies in a log's place; with the path.
    pub fn rotate(&self) -> io::Result<Vec<&'static str>> {
        let one = |log: LogFile| {
            let done = self.rotate_one(log);
            let done = done.map_err(|error| in_path(&self.path.join(log.name()), &error))?;
            Ok(done.then_some(log.name()))
        };
        let done: Vec<io::Result<_>> = LogFile::ALL.into_iter().map(one).collect();
        let rotated: io::Result<Vec<_>> = done.into_iter().collect();
        Ok(rotated?.into_iter().flatten().collect())
    }

    /// Whether one of the logs has grown over the limit, or something else lies in its place.
    pub fn is_due(&self) -> bool {
        LogFile::ALL.into_iter().any(|log| {
            let meta = statat(&self.dir, log.name(), AtFlags::SYMLINK_NOFOLLOW);
            meta.is_ok_and(|meta| {
                let is_file = FileType::from_raw_mode(meta.st_mode) == FileType::RegularFile;
                !is_file || u64::try_from(meta.st_size).is_ok_and(|size| size > LOG_LIMIT)
            })
        })
    }

    fn rotate_one(&self, log: LogFile) -> io::Result<bool> {
        let flags =
            OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let mut file = match openat(&self.dir, log.name(), flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(false),
            Err(Errno::LOOP) => return Err(planted("it is a link")),
            Err(Errno::ISDIR | Errno::NXIO) => return Err(planted("it is no regular file")),
            Err(error) => return Err(error.into()),
        };
        let owner = rustix::fs::fstat(&self.dir)?.st_uid;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(planted("it is no regular file"));
        }
        if meta.nlink() != 1 {
            return Err(planted("it has other names"));
        }
        if meta.uid() != owner {
            return Err(planted("it does not belong to the owner of its directory"));
        }
        if meta.len() <= LOG_LIMIT {
            return Ok(false);
        }
        // Under a name of its own first: half a copy is never taken for a part of the log.
        let copy_name = format!("{}.new", log.name());
        ok_if_missing(unlinkat(&self.dir, &copy_name, AtFlags::empty()))?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let copy = File::from(openat(&self.dir, &copy_name, flags, mode)?);
        let copied = copy_end(&mut file, &copy)
            .and_then(|()| give(&copy, &meta))
            .and_then(|()| self.put_in_line(log, &copy_name));
        if let Err(error) = copied {
            // Half a copy helps nobody, and the disk may be full.
            let _ = unlinkat(&self.dir, &copy_name, AtFlags::empty());
            return Err(error);
        }
        ftruncate(&file, 0)?;
        Ok(true)
    }

    /// Makes a copy the youngest of the older parts; the oldest goes.
    fn put_in_line(&self, log: LogFile, copy: &str) -> io::Result<()> {
        for number in (1..KEPT).rev() {
            ok_if_missing(renameat(
                &self.dir,
                log.older(number),
                &self.dir,
                log.older(number + 1),
            ))?;
        }
        Ok(renameat(&self.dir, copy, &self.dir, log.older(1))?)
    }
}

fn planted(what: &str) -> io::Error {
    let text = format!("{what}: it is left alone");
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

fn ok_if_missing(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Err(Errno::NOENT) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Copies the end of a log, with what is added meanwhile.
fn copy_end(log: &mut File, mut copy: &File) -> io::Result<()> {
    let start = log.metadata()?.len().saturating_sub(MOST);
    log.seek(SeekFrom::Start(start))?;
    // A log that grows faster than it is copied is not followed for ever.
    io::copy(&mut log.by_ref().take(2 * MOST), &mut copy)?;
    Ok(())
}

/// Gives the copy the owner and permissions of the log.
fn give(copy: &File, log: &std::fs::Metadata) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(log.uid()), Gid::from_raw(log.gid()));
    if copy.metadata()?.uid() != log.uid() || copy.metadata()?.gid() != log.gid() {
        fchown(copy.as_fd(), Some(uid), Some(gid))?;
    }
    let mode = Mode::from_raw_mode(log.mode() & 0o666);
    Ok(rustix::fs::fchmod(copy.as_fd(), mode)?)
}
