use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use thiserror::Error;

use super::{Host, Pid, bounded, user_name};

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
    /// Takes the lock, waiting for at most `limit`.
    ///
    /// # Errors
    /// [`LockError`]
    pub fn take(host: &Host, path: &Path, limit: Duration) -> Result<Self, LockError> {
        let unusable = |error| LockError::Unusable {
            path: path.to_owned(),
            error,
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(unusable)?;
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => return Err(unusable(error)),
                Err(TryLockError::WouldBlock) if begun.elapsed() >= limit => {
                    return Err(LockError::Busy {
                        path: path.to_owned(),
                        holder: holder(host, &mut file),
                        waited: limit,
                    });
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            }
        }
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            write!(file, "{}", std::process::id())
        };
        write(&mut file).map_err(unusable)?;
        Ok(Self { _file: file })
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
        let host = Host::at(Path::new("/"));
        let first = Lock::take(&host, &path, Duration::ZERO).unwrap();
        let error = Lock::take(&host, &path, Duration::ZERO)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(&format!("process {} (", std::process::id())),
            "{error}"
        );
        drop(first);
        Lock::take(&host, &path, Duration::ZERO).unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
