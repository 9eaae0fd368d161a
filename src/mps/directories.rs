//! The directories of a daemon: made, opened to its users, removed.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rustix::fs::FileType;

use super::pipe_files::{LEFT, LOCK_FILE, PIPE_FILES};
use super::{Access, Daemon, LogDir, LogFile, MpsError};
use crate::host::{self, Directory, Uid};

impl Daemon {
    /// Makes the log directory and the pipe directory, which only its owner can enter until the daemon holds its lock.
    pub(super) fn make_directories(&self, access: &Access) -> Result<(), MpsError> {
        let logs = Directory::open(self.log.parent().unwrap_or(&self.log))?;
        let name = self.log.file_name().and_then(|name| name.to_str());
        let name = name.unwrap_or_default();
        logs.detach_mounts(name)?;
        move_foreign_logs(&logs, name, access.owner())?;
        rename_non_files(&access.make_in(&logs, name, access.mode())?)?;
        let device = self.device_directory()?;
        device.detach_mounts(self.pipe_name())?;
        access.make_in(&device, self.pipe_name(), 0o700)?;
        Ok(())
    }

    /// Opens the pipe directory to clients. Closes the lock file to them first: a user who can open it can take its lock
    /// as soon as the daemon has exited.
    pub(super) fn open_directory(&self, access: &Access) -> Result<(), MpsError> {
        let device = self.device_directory()?;
        if access.user().is_none()
            && let Some(pipe) = device.child(self.pipe_name())?
            && let Some(lock) = pipe.open_file(LOCK_FILE)?
        {
            lock.set_permissions(PermissionsExt::from_mode(0o600))?;
        }
        access.make_in(&device, self.pipe_name(), access.mode())?;
        Ok(())
    }

    /// Returns the path of a log that is not a regular file, and its type.
    pub(super) fn log_that_is_no_file(&self) -> Option<(PathBuf, &'static str)> {
        let logs = LogDir::open(&self.log).ok()?;
        LogFile::ALL.into_iter().find_map(|log| {
            let meta = logs.directory().stat(log.name()).ok()??;
            let kind = match FileType::from_raw_mode(meta.st_mode) {
                FileType::RegularFile => return None,
                FileType::Fifo => "a FIFO",
                FileType::Symlink => "a symbolic link",
                _ => "not a regular file",
            };
            Some((self.log.join(log.name()), kind))
        })
    }

    /// Removes the files of daemons from the pipe directory, and the directory. Moves it away instead if its user keeps
    /// other files there: those must not block us, and are not ours to remove.
    pub fn remove_pipe_dir(&self) -> Result<(), MpsError> {
        let device = match self.device_directory() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        device.detach_mounts(self.pipe_name())?;
        let removed = self
            .remove_leftovers()
            .and_then(|()| device.remove_dir(self.pipe_name()));
        Ok(removed.or_else(|_| self.move_away())?)
    }

    /// Moves the pipe directory to [`LEFT`], where no records are read: a user could have forged one.
    pub(super) fn move_away(&self) -> io::Result<()> {
        let device = self.device_directory()?;
        let above = device.path().parent().unwrap_or(device.path());
        let left = Directory::open(above)?.make_child(LEFT, 0o755)?;
        let name = device.path().file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        let free = free_name(&left, &name).unwrap_or_else(|| name.into_owned());
        device.rename(self.pipe_name(), &left, free)
    }

    /// Removes the files of a daemon that has exited. Any user may hold the lock of an old lock file, so the next daemon
    /// must not find one.
    pub(super) fn remove_leftovers(&self) -> io::Result<()> {
        let Some(pipe) = self.pipe_directory()? else {
            return Ok(());
        };
        PIPE_FILES
            .iter()
            .try_for_each(|file| pipe.remove_file(file))
    }
}

/// Returns a name that begins so and is not taken.
fn free_name(directory: &Directory, begin: &str) -> Option<String> {
    (1..=u16::MAX)
        .map(|number| format!("{begin}.{number}"))
        .find(|free| !directory.has(free))
}

/// Renames a log directory that belongs to another user, who may have put links there for the next daemon to write
/// through.
fn move_foreign_logs(logs: &Directory, name: &str, owner: Uid) -> io::Result<()> {
    let Some(meta) = logs.stat(name)? else {
        return Ok(());
    };
    if Uid(meta.st_uid) == owner || host::caller() != Uid::ROOT {
        return Ok(());
    }
    match free_name(logs, &format!("{name}.of-{}", meta.st_uid)) {
        Some(aside) => logs.rename(name, logs, aside),
        None => Ok(()),
    }
}

/// Renames logs that are not regular files: a daemon would wait for a reader of a FIFO. Fails if the directory's user
/// has taken all new names.
fn rename_non_files(logs: &Directory) -> io::Result<()> {
    for name in LogFile::ALL.map(LogFile::name) {
        let Some(meta) = logs.stat(name)? else {
            continue;
        };
        if FileType::from_raw_mode(meta.st_mode) == FileType::RegularFile {
            continue;
        }
        let Some(free) = free_name(logs, &format!("{name}.no-file")) else {
            return Err(io::Error::other(format!(
                "{path} is not a regular file, and no name is left to put it aside under: remove it, or {path}.no-file.*",
                path = logs.path().join(name).display()
            )));
        };
        logs.rename(name, logs, free)?;
    }
    Ok(())
}
