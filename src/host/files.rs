//! Reads and writes the files that a user names or the administrator keeps, and the errors that name a file with its fault
//! and the remedy.
//!
//! Their directory may belong to somebody who replaces its entries at any moment: a file is written beside its place and
//! renamed, both in one open directory, and no link is followed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, Stat, fstat, linkat, openat, renameat,
    renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use tempfile::TempDir;

use super::file_error::FileFault;
use super::trusted_path::{Walk, walk_path};
use super::{Directory, FileError, FileResult};

/// The most that is read of a file, in bytes. Profiles and state files are smaller.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The most that is read of a file of another program: gres.conf may have the devices of a whole cluster.
const MAX_CONFIGURATION_BYTES: u64 = 64 << 20;

/// Reads text from a file, or from standard input for `-`. Returns the name of the file in messages with it.
pub fn read_text_from(path: &Path) -> (&Path, FileResult<String>) {
    if path == Path::new("-") {
        return (Path::new("standard input"), read_text(io::stdin()));
    }
    (
        path,
        File::open(path)
            .map_err(FileError::from)
            .and_then(read_text),
    )
}

/// Reads text from a file of another program, which may have comments in another encoding. Refuses a FIFO, which may never
/// have a writer.
pub fn read_configuration(path: &Path) -> FileResult<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) == FileType::Fifo {
        return Err(irregular_file("it is a FIFO"));
    }
    let bytes = read_at_most(MAX_CONFIGURATION_BYTES, File::from(file))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads text of at most 1 MiB. Fails with `InvalidData` if there is more, or if it is not UTF-8.
fn read_text(file: impl Read) -> FileResult<String> {
    String::from_utf8(read_limited(file)?)
        .map_err(|_| FileError::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// Reads a whole file of at most 1 MiB. Fails with `InvalidData` if it is larger: it is as useless as a damaged one, and
/// `FileTooLarge` is what the system says of a write.
pub(super) fn read_limited(file: impl Read) -> FileResult<Vec<u8>> {
    read_at_most(MAX_FILE_BYTES, file)
}

fn read_at_most(most: u64, file: impl Read) -> FileResult<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut file = file.take(most + 1);
    file.read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let why = format!("it is larger than {} MiB", most >> 20);
        return Err(FileError::new(io::ErrorKind::InvalidData, why));
    }
    Ok(bytes)
}

/// Returns the directory that a path is in.
pub fn directory_of(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| *parent != Path::new(""))
        .unwrap_or(Path::new("."))
}

/// Makes an empty directory that nobody else can enter. It is removed when it is dropped.
pub fn empty_directory() -> FileResult<TempDir> {
    Ok(tempfile::Builder::new()
        .permissions(std::fs::Permissions::from_mode(0o700))
        .tempdir()?)
}

/// Returns the value of a field in a file of `/proc` with a field per line, or `None` if it is hidden.
pub fn read_proc_field(file: impl AsRef<Path>, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.trim().to_owned())
}

/// Returns the number in a file of the kernel, or `None` if it is hidden or there is another word.
pub fn read_number(file: impl AsRef<Path>) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The mode of a new file, which the umask may restrict.
const NEW_FILE_MODE: Mode = Mode::from_raw_mode(0o644);

/// The most names that are tried for a temporary file.
const MAX_NAME_TRIES: usize = 1000;

/// Writes text to the file at this path, which is replaced at once.
pub fn write_text_to(path: &Path, text: &str) -> FileResult<()> {
    let (directory, name) = open_parent(path)?;
    write_file(&directory, name, text.as_bytes())
}

/// Writes text to a new file at this path. Fails with `AlreadyExists` if there is anything.
pub fn write_new_text_to(path: &Path, text: &str) -> FileResult<()> {
    let (directory, name) = open_parent(path)?;
    let written = Temporary::create_with(&directory, text.as_bytes())?.become_new(name);
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists if path.exists() && !path.is_file() => {
            irregular_file("it is not a regular file")
        }
        _ => error,
    })
}

/// Writes files with these names into a directory, which is created if it does not exist.
pub fn write_files_into(path: &Path, files: &[(String, Vec<u8>)]) -> FileResult<()> {
    let directory = walk_path(path, Walk::MakeNamed)?;
    for (name, content) in files {
        write_file(&directory, name.as_ref(), content)
            .map_err(|error| error.at(&path.join(name)))?;
    }
    Ok(())
}

/// Opens the directory of a file, and returns it with the name of the file.
pub(super) fn open_parent(path: &Path) -> FileResult<(OwnedFd, &OsStr)> {
    let name = path.file_name().ok_or(Errno::ISDIR)?;
    if path.as_os_str().as_bytes().ends_with(b"/") {
        return Err(Errno::ISDIR.into());
    }
    let beside = directory_of(path);
    let directory = walk_path(beside, Walk::Named).map_err(|error| match error.kind() {
        ErrorKind::NotFound => FileError::no_directory(beside),
        _ => error,
    })?;
    Ok((directory, name))
}

/// Writes a file, and replaces one that is there.
fn write_file(directory: &OwnedFd, name: &OsStr, content: &[u8]) -> FileResult<()> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(Errno::ISDIR.into()),
            FileType::Symlink => return Err(irregular_file("it is a symbolic link")),
            _ => return Err(irregular_file("it is not a regular file")),
        },
        Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    Temporary::create_with(directory, content)?.replace(name)
}

/// A file that gets its name when it is complete.
struct Temporary<'a> {
    directory: &'a OwnedFd,
    name: OsString,
}

impl<'a> Temporary<'a> {
    fn create_with(directory: &'a OwnedFd, content: &[u8]) -> FileResult<Self> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut tried = 0;
        let (name, file) = loop {
            let name = format!(".mig-mps.{}.{tried}", std::process::id());
            match openat(directory, &name, flags, NEW_FILE_MODE) {
                Ok(file) => break (name.into(), file),
                // Another process has this number in its own namespace, or had it before.
                Err(Errno::EXIST) if tried < MAX_NAME_TRIES => tried += 1,
                Err(error) => return Err(error.into()),
            }
        };
        let temporary = Self { directory, name };
        File::from(file).write_all(content)?;
        Ok(temporary)
    }

    fn replace(self, name: &OsStr) -> FileResult<()> {
        Ok(renameat(self.directory, &self.name, self.directory, name)?)
    }

    /// Fails if the name is taken.
    fn become_new(self, name: &OsStr) -> FileResult<()> {
        let to = self.directory;
        match renameat_with(to, &self.name, to, name, RenameFlags::NOREPLACE) {
            // NFS cannot do it.
            Err(Errno::INVAL | Errno::NOSYS) => {
                Ok(linkat(to, &self.name, to, name, AtFlags::empty())?)
            }
            other => Ok(other?),
        }
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        // It is gone if it was renamed.
        let _ = unlinkat(self.directory, &self.name, AtFlags::empty());
    }
}

fn irregular_file(why: &str) -> FileError {
    FileError::with_fault(FileFault::Irregular, why)
}

/// A file that mig-mps keeps in a directory of the administrator: it writes, replaces and removes it. Another one in its
/// place is left as it is.
pub struct OwnFile {
    pub directory: PathBuf,
    pub name: &'static str,
    /// Its permissions when it is written.
    pub mode: u32,
    /// True if container runtimes may make directories in its place, which are then removed.
    pub is_mounted: bool,
    /// True for the text of a file that mig-mps wrote.
    pub is_ours: fn(&str) -> bool,
}

impl OwnFile {
    pub fn path(&self) -> PathBuf {
        self.directory.join(self.name)
    }

    /// Reads the file; `None` if there is none, or another one in its place.
    pub fn read(&self) -> FileResult<Option<String>> {
        Ok(self.read_any()?.filter(|text| (self.is_ours)(text)))
    }

    /// Fails if another file is in its place.
    pub fn check_place(&self) -> FileResult<()> {
        self.read_own().map(drop)
    }

    /// Writes the file; returns false if it has this text and these permissions already. Refuses to replace another one.
    pub fn write(&self, text: &str) -> FileResult<bool> {
        let directory = Directory::open_or_create(&self.directory, 0o755)?;
        let is_same = self.read_own()?.as_deref() == Some(text);
        let meta = directory.stat(self.name)?;
        if is_same && meta.is_some_and(|meta| meta.st_mode & self.mode == self.mode) {
            return Ok(false);
        }
        // What reads files of such a directory goes by their ending.
        let half_made = format!(".{}.new", self.name);
        directory.replace_file(self.name, &half_made, text.as_bytes(), self.mode)?;
        Ok(true)
    }

    /// Removes the file; returns false if there is none. Refuses to remove another one.
    pub fn remove(&self) -> FileResult<bool> {
        let is_there = self.read_own()?.is_some();
        if is_there {
            Directory::open(&self.directory)?.remove_file(self.name)?;
        }
        Ok(is_there)
    }

    /// Returns the text of the file, or of another one in its place.
    fn read_any(&self) -> FileResult<Option<String>> {
        let Some(directory) = Directory::open_if_there(&self.directory)? else {
            return Ok(None);
        };
        let bytes = if self.is_mounted {
            directory.read_file_in_place(self.name)?
        } else {
            directory.read_file(self.name)?
        };
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// The same. Fails if it is another one.
    fn read_own(&self) -> FileResult<Option<String>> {
        match self.read_any()? {
            Some(text) if !(self.is_ours)(&text) => {
                let why = "mig-mps did not write it and does not replace it";
                Err(FileError::with_fault(FileFault::InTheWay, why).at(&self.path()))
            }
            found => Ok(found),
        }
    }
}

/// A file by its inode and time: a file is replaced when its content changes.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Fingerprint {
    path: PathBuf,
    inode: u64,
    pub modified: SystemTime,
}

impl Fingerprint {
    pub(super) fn from_stat(path: PathBuf, meta: &Stat) -> Option<Self> {
        Some(Self {
            path,
            inode: meta.st_ino,
            modified: modification_time(meta)?,
        })
    }
}

/// Returns the time of the last write.
pub fn modification_time(meta: &Stat) -> Option<SystemTime> {
    let seconds = u64::try_from(meta.st_mtime).ok()?;
    let nanoseconds = u32::try_from(meta.st_mtime_nsec).ok()?;
    Some(SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds))
}
