use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;

/// How many files this process asks for: every daemon that is asked at the same time takes some.
const FILES: u64 = 4096;

/// The fewest that it works with. With fewer it cannot open what is there, which would look as if it were not.
pub const FEWEST_FILES: u64 = 64;

/// This process may have too few files open.
#[derive(Debug, Error)]
#[error("this process may have {0} files open, and needs {FEWEST_FILES}: raise ulimit -n")]
pub struct TooFewFiles(u64);

/// Lets this process have more files open than it was started with.
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
    // Root may raise the hard limit too.
    let _ = setrlimit(Resource::Nofile, raised(hard))
        .or_else(|_| setrlimit(Resource::Nofile, raised(limit.maximum)));
    match getrlimit(Resource::Nofile).current {
        Some(few) if few < FEWEST_FILES => Err(TooFewFiles(few)),
        _ => Ok(()),
    }
}

/// How many files this process may have open: now, and if it asks for more.
pub fn open_files() -> (Option<u64>, Option<u64>) {
    let limit = getrlimit(Resource::Nofile);
    (limit.current, limit.maximum)
}
