use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;

/// The limit of open files that this process requests: each daemon that is queried in parallel needs some.
const FILES: u64 = 4096;

/// The lowest limit at which it works. With fewer, existing files could not be opened and would seem to be missing.
pub const FEWEST_FILES: u64 = 64;

/// The limit of open files of this process is too low.
#[derive(Debug, Error)]
#[error("this process may have {0} files open, and needs {FEWEST_FILES}: raise ulimit -n")]
pub struct TooFewFiles(u64);

/// Raises the limit of open files of this process.
pub fn raise_open_files() -> Result<(), TooFewFiles> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= FILES) {
        return Ok(());
    }
    let raised = |maximum: Option<u64>| Rlimit {
        current: Some(maximum.map_or(FILES, |maximum| maximum.min(FILES))),
        maximum,
    };
    let hard = limit.maximum.map(|hard| hard.max(FILES));
    // Root can raise the hard limit too.
    let _ = setrlimit(Resource::Nofile, raised(hard))
        .or_else(|_| setrlimit(Resource::Nofile, raised(limit.maximum)));
    match getrlimit(Resource::Nofile).current {
        Some(few) if few < FEWEST_FILES => Err(TooFewFiles(few)),
        _ => Ok(()),
    }
}

/// Returns the soft and the hard limit of open files of this process.
pub fn open_files() -> (Option<u64>, Option<u64>) {
    let limit = getrlimit(Resource::Nofile);
    (limit.current, limit.maximum)
}
