use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use thiserror::Error;

use rustix::fs::OFlags;

use super::{Directory, EntryKind, FileError, FileResult, Host, Pid, shorten_command, user_name};
use crate::failure::{ExitStatus, Failure};

/// The node's change lock. The process that holds it may change the node.
#[derive(Debug)]
pub struct Lock {
    // Closing the file releases the lock.
    _file: File,
}

/// A failure to take the change lock.
#[derive(Debug, Error)]
pub enum LockError {
    /// Another process is changing the node.
    #[error("{holder} is changing this node: its lock {} was not free within {} s", path.display(), waited.as_secs())]
    Busy {
        path: PathBuf,
        /// The holder, in words.
        holder: String,
        waited: Duration,
    },
    /// The lock file cannot be used.
    #[error("cannot lock {}: {error}", path.display())]
    Unusable { path: PathBuf, error: FileError },
}

impl Failure for LockError {
    fn status(&self) -> ExitStatus {
        match self {
            Self::Busy { .. } => ExitStatus::Refused,
            Self::Unusable { .. } => ExitStatus::Failed,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Busy { .. } => {
                Some("wait until that command has finished, then run this command again".to_owned())
            }
            Self::Unusable { error, .. } => error.hint(),
        }
    }
}

/// The time after which a waiting process says so: most changes are shorter.
const SILENT_WAIT: Duration = Duration::from_secs(1);

/// The pause between two tries: flock(2) has no time limit.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

impl Lock {
    /// Takes the lock with this name in a directory. Waits up to `limit`, and soon passes the holder to `waiting`.
    pub fn acquire(
        host: &Host,
        directory: &Directory,
        name: &str,
        limit: Duration,
        waiting: impl FnOnce(&str),
    ) -> Result<Self, LockError> {
        let path = directory.path().join(name);
        let mut file = match open_lock_file(directory, name) {
            Ok(file) => file,
            Err(error) => return Err(LockError::Unusable { path, error }),
        };
        let start = Instant::now();
        let mut waiting = Some(waiting);
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => {
                    let error = error.into();
                    return Err(LockError::Unusable { path, error });
                }
                Err(TryLockError::WouldBlock) if start.elapsed() >= limit => {
                    return Err(LockError::Busy {
                        path,
                        holder: describe_holder(host, &mut file),
                        waited: limit,
                    });
                }
                Err(TryLockError::WouldBlock) => {
                    if start.elapsed() >= SILENT_WAIT
                        && let Some(waiting) = waiting.take()
                    {
                        waiting(&describe_holder(host, &mut file));
                    }
                    std::thread::sleep(RETRY_INTERVAL);
                }
            }
        }
        // Only we can write to the file, and it contains only the pid of its last holder, with the boot that the pid belongs
        // to. On a full disk it names nobody.
        let boot_id = host.boot_id().unwrap_or_default();
        let _ = file
            .rewind()
            .and_then(|()| write!(file, "{:<10} {boot_id:<36}", std::process::id()));
        Ok(Self { _file: file })
    }
}

/// Opens the lock file, or creates it.
fn open_lock_file(directory: &Directory, name: &str) -> FileResult<File> {
    directory.free_place(name, EntryKind::File)?;
    loop {
        if let Some(file) = directory.open_file_with(name, OFlags::RDWR)? {
            return Ok(file);
        }
        match directory.create_file(name, 0o600) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            // Opened again, for reading too.
            _ => {}
        }
    }
}

fn describe_holder(host: &Host, file: &mut File) -> String {
    let mut text = String::new();
    let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
    let mut words = text.split_whitespace().take_while(|_| read.is_ok());
    let pid = words.next().and_then(|pid| pid.parse().ok()).map(Pid);
    // A file system that machines share may share its locks as well.
    if words
        .next()
        .is_some_and(|boot| host.boot_id().is_ok_and(|own| own != boot))
    {
        return "a process of another machine".to_owned();
    }
    match pid.and_then(|pid| host.find_process(pid)) {
        Some(process) => {
            let user = process.owner().map_or_else(|| "?".to_owned(), user_name);
            let command = process.command_line();
            format!(
                "process {} ({user}, {})",
                process.pid,
                shorten_command(&command)
            )
        }
        None => "another process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_the_second_names_the_holder() {
        let path = std::env::temp_dir().join(format!("mig-mps-lock-{}", std::process::id()));
        let directory = Directory::open_or_create(&path, 0o700).unwrap();
        let host = Host::at("/".as_ref());
        let take = |limit| Lock::acquire(&host, &directory, "lock", limit, |_| {});
        let first = take(Duration::ZERO).unwrap();
        let error = take(Duration::ZERO).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("process {} (", std::process::id())),
            "{error}"
        );
        std::fs::write(path.join("lock"), "1 another-boot").unwrap();
        let error = take(Duration::ZERO).unwrap_err().to_string();
        assert!(
            error.starts_with("a process of another machine is changing this node"),
            "{error}"
        );
        drop(first);
        // A child that another test starts has the lock's descriptor until its `exec`.
        take(Duration::from_secs(10)).unwrap();
        std::fs::remove_dir_all(&path).unwrap();
    }
}
