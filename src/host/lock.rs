use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use thiserror::Error;

use rustix::fs::OFlags;

use super::{Directory, Host, Pid, bounded, user_name};

/// The node's change lock: held by the one process that may change it, for as long as this lives.
#[derive(Debug)]
pub struct Lock {
    // Closing the file gives the lock back.
    _file: File,
}

/// Why the change lock was not had.
#[derive(Debug, Error)]
pub enum LockError {
    /// Somebody else is changing the node.
    #[error("{holder} is changing this node: its lock {} was not free within {} s", path.display(), waited.as_secs())]
    Busy {
        /// The lock file.
        path: PathBuf,
        /// Who holds it, as far as that can be seen.
        holder: String,
        /// For how long it was waited.
        waited: Duration,
    },
    /// The lock file cannot be used.
    #[error("cannot lock {}: {error}", path.display())]
    Unusable {
        /// The lock file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// Between two tries: flock(2) has no time limit of its own.
const PAUSE: Duration = Duration::from_millis(20);

impl Lock {
    /// Takes the lock of that name in a directory, waiting for at most `limit`.
    pub fn take(
        host: &Host,
        directory: &Directory,
        name: &str,
        limit: Duration,
    ) -> Result<Self, LockError> {
        let path = directory.path().join(name);
        let unusable = |error| LockError::Unusable {
            path: path.clone(),
            error,
        };
        let mut file = open(directory, name).map_err(unusable)?;
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => return Err(unusable(error)),
                Err(TryLockError::WouldBlock) if begun.elapsed() >= limit => {
                    return Err(LockError::Busy {
                        path: path.clone(),
                        holder: holder(host, &mut file),
                        waited: limit,
                    });
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            }
        }
        // The file is ours alone and holds nothing but the pid of its last holder.
        let write = |file: &mut File| {
            file.seek(SeekFrom::Start(0))?;
            write!(file, "{:<10}", std::process::id())
        };
        write(&mut file).map_err(unusable)?;
        Ok(Self { _file: file })
    }
}

/// Opens the lock file, and makes it if there is none.
fn open(directory: &Directory, name: &str) -> io::Result<File> {
    loop {
        if let Some(file) = directory.open_file_with(name, OFlags::RDWR)? {
            return Ok(file);
        }
        match directory.create_file(name, 0o600) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            // It is opened anew, for reading too.
            _ => {}
        }
    }
}

fn holder(host: &Host, file: &mut File) -> String {
    let mut text = String::new();
    let read = file
        .seek(SeekFrom::Start(0))
        .and_then(|_| file.read_to_string(&mut text));
    let pid = read.ok().and_then(|_| text.trim().parse().ok()).map(Pid);
    match pid.and_then(|pid| host.process(pid)) {
        Some(process) => {
            let user = process.owner().map_or_else(|| "?".to_owned(), user_name);
            format!(
                "process {} ({user}, {})",
                process.pid,
                bounded(&process.command())
            )
        }
        None => "another process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_holds_it() {
        let path = std::env::temp_dir().join(format!("mig-mps-lock-{}", std::process::id()));
        let directory = Directory::make(&path, 0o700).unwrap();
        let host = Host::at("/".as_ref());
        let take = || Lock::take(&host, &directory, "lock", Duration::ZERO);
        let first = take().unwrap();
        let error = take().unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("process {} (", std::process::id())),
            "{error}"
        );
        drop(first);
        take().unwrap();
        std::fs::remove_dir_all(&path).unwrap();
    }
}
