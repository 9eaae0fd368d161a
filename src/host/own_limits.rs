//! The limits of this process.

use std::path::Path;

use rustix::process::{
    Resource, Rlimit, getpriority_process, getrlimit, setpriority_process, setrlimit,
};
use thiserror::Error;

use super::{Host, LimitsError, Pid};

/// A memory limit at which this program would abort at any point.
#[derive(Debug)]
struct MemoryLimit {
    resource: Resource,
    what: &'static str,
    /// The letter for `ulimit`.
    flag: char,
    /// The bytes that a change may need. Measured with `up` of 56 devices on a simulated node: 1.3 GB of addresses on
    /// 2 CPUs, and 21 GB if every thread has a heap of its own, as on many CPUs; 332 MB of data; 176 KiB of stack.
    needed: u64,
    /// The limit to set instead of none.
    most: Option<u64>,
}

/// The address space, including reserved memory.
static ADDRESSES: MemoryLimit = MemoryLimit {
    resource: Resource::As,
    what: "virtual memory (RLIMIT_AS)",
    flag: 'v',
    needed: 32 << 30,
    most: None,
};

/// Private writable memory.
static DATA: MemoryLimit = MemoryLimit {
    resource: Resource::Data,
    what: "memory for data (RLIMIT_DATA)",
    flag: 'd',
    needed: 1 << 30,
    most: None,
};

/// The stack of the first thread.
static STACK: MemoryLimit = MemoryLimit {
    resource: Resource::Stack,
    what: "the stack (RLIMIT_STACK)",
    flag: 's',
    needed: 1 << 20,
    // The kernel's default: without a limit, programs have another memory layout.
    most: Some(8 << 20),
};

/// A memory limit is too low for a change, which would abort half-way.
#[derive(Debug, Error)]
#[error(
    "{} is limited to {} KiB, and this needs {} KiB: it would end half-way",
    limit.what, allowed >> 10, limit.needed >> 10
)]
pub struct TooLittleMemory {
    limit: &'static MemoryLimit,
    allowed: u64,
}

impl TooLittleMemory {
    /// Returns the remedy.
    pub fn hint(&self) -> String {
        format!(
            "ulimit -{} {} allows as much; where the shell refuses that, the limit is in /etc/security/limits.conf or in \
             the systemd unit",
            self.limit.flag,
            self.limit.needed >> 10
        )
    }
}

impl MemoryLimit {
    /// Raises the limit to the system's maximum if it is too low. Daemons inherit it, and need more than this program.
    fn raise(&'static self) -> Result<(), TooLittleMemory> {
        let limit = getrlimit(self.resource);
        if limit.current.is_none_or(|now| now >= self.needed) {
            return Ok(());
        }
        let wanted = [limit.maximum, self.most].into_iter().flatten().min();
        let raised = Rlimit {
            current: wanted,
            maximum: limit.maximum,
        };
        let is_raised = setrlimit(self.resource, raised).is_ok();
        match if is_raised { wanted } else { limit.current } {
            Some(allowed) if allowed < self.needed => Err(TooLittleMemory {
                limit: self,
                allowed,
            }),
            _ => Ok(()),
        }
    }
}

/// Raises the memory limits that are too low for a change. Fails if the system does not allow it.
pub fn raise_memory() -> Result<(), TooLittleMemory> {
    [&ADDRESSES, &DATA, &STACK]
        .into_iter()
        .try_for_each(MemoryLimit::raise)
}

/// Raises the limit of the stack, without which this program cannot even read its arguments.
pub fn raise_stack() -> Result<(), TooLittleMemory> {
    STACK.raise()
}

/// A limit that a daemon would inherit from the shell, and that would end or slow it later.
#[derive(Debug, Error)]
pub enum UnfitForDaemons {
    #[error("a daemon would inherit a limit of {what}: {} {unit}", allowed / per)]
    Limited {
        what: &'static str,
        allowed: u64,
        unit: &'static str,
        /// The size of a unit.
        per: u64,
        /// The letter for `ulimit`.
        flag: char,
    },
    #[error("a daemon would inherit the priority of this shell: nice {0}")]
    Nice(i32),
}

impl UnfitForDaemons {
    /// Returns the remedy.
    pub fn hint(&self) -> String {
        match self {
            Self::Limited { flag, .. } => format!(
                "ulimit -{flag} unlimited lifts it; where the shell refuses that, the limit is in \
                 /etc/security/limits.conf or in the systemd unit"
            ),
            Self::Nice(_) => "run it from a shell that was not started with nice".to_owned(),
        }
    }
}

/// Gives this process the limits and the priority that a service has, for the daemons that inherit them. Fails if the
/// system does not allow it.
pub fn take_limits_of_services() -> Result<(), UnfitForDaemons> {
    let none = Rlimit {
        current: None,
        maximum: None,
    };
    for (resource, what, flag, unit, per) in [
        (Resource::Cpu, "CPU time (RLIMIT_CPU)", 't', "s", 1),
        (
            Resource::Fsize,
            "the size of files (RLIMIT_FSIZE)",
            'f',
            "KiB",
            1 << 10,
        ),
    ] {
        let limit = getrlimit(resource);
        if let Some(allowed) = limit.current
            && setrlimit(resource, none).is_err()
        {
            return Err(UnfitForDaemons::Limited {
                what,
                allowed,
                unit,
                per,
                flag,
            });
        }
    }
    // The kernel's default: no core files. One of a server is as large as its memory.
    let no_core = Rlimit {
        current: Some(0),
        maximum: getrlimit(Resource::Core).maximum,
    };
    let _ = setrlimit(Resource::Core, no_core);
    // Of this machine, whatever root directory another part of this program reads.
    let first = Host::at(Path::new("/")).process(Pid(1));
    if let Some(signals) = first.and_then(|first| first.pending_signals()) {
        raise_pending_signals(signals);
    }
    match getpriority_process(None) {
        Ok(0) | Err(_) => Ok(()),
        Ok(nice) => setpriority_process(None, 0).map_err(|_| UnfitForDaemons::Nice(nice)),
    }
}

/// Raises the limit of pending signals to that of the system's first process, or as far as is allowed.
fn raise_pending_signals(signals: u64) {
    let limit = getrlimit(Resource::Sigpending);
    if limit.current.is_none_or(|now| now >= signals) {
        return;
    }
    let raised = |hard: Option<u64>| Rlimit {
        current: Some(hard.map_or(signals, |hard| hard.min(signals))),
        maximum: hard,
    };
    let hard = limit.maximum.map(|hard| hard.max(signals));
    let _ = setrlimit(Resource::Sigpending, raised(hard))
        .or_else(|_| setrlimit(Resource::Sigpending, raised(limit.maximum)));
}

/// The limit of open files that this process requests: each daemon that is queried in parallel needs some.
const FILES: u64 = 4096;

/// The lowest limit at which it works. With fewer, existing files could not be opened and would seem to be missing.
pub const FEWEST_FILES: u64 = 64;

/// The limit of open files of this process is too low.
#[derive(Debug, Error)]
#[error("this process may have {0} files open, and needs {FEWEST_FILES}")]
pub struct TooFewFiles(u64);

impl TooFewFiles {
    /// Returns the remedy.
    pub fn hint() -> String {
        format!("ulimit -n {FEWEST_FILES} allows as many")
    }
}

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

/// The limit of open files that a program gets whose own is too low for an MPS client.
const CLIENT_FILES: u64 = 1024;

/// Raises the limit of open files, which programs that this process becomes keep, if an MPS client could not live with
/// it. Measured on an H200: a client with 10, 24 or 26 hangs the device for everybody, and one with 48 works.
pub fn give_open_files() -> Result<(), TooFewFiles> {
    let limit = getrlimit(Resource::Nofile);
    let Some(few) = limit.current.filter(|now| *now < FEWEST_FILES) else {
        return Ok(());
    };
    let raised = limit.maximum.unwrap_or(CLIENT_FILES).min(CLIENT_FILES);
    let wanted = Rlimit {
        current: Some(raised),
        maximum: limit.maximum,
    };
    if raised < FEWEST_FILES || setrlimit(Resource::Nofile, wanted).is_err() {
        return Err(TooFewFiles(few.max(raised)));
    }
    Ok(())
}

/// Checks that a program which this process starts can be given this limit of open files.
pub fn check_open_files(files: u64) -> Result<(), LimitsError> {
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_none_or(|most| most >= files) {
        return Ok(());
    }
    let raised = Rlimit {
        current: limit.current,
        maximum: Some(files),
    };
    setrlimit(Resource::Nofile, raised).map_err(|error| LimitsError::Files {
        files,
        error: error.into(),
    })?;
    // Daemons without a limit of their own get what they would have got.
    let _ = setrlimit(Resource::Nofile, limit);
    Ok(())
}

/// Returns the soft and the hard limit of open files of this process.
pub fn open_files() -> (Option<u64>, Option<u64>) {
    let limit = getrlimit(Resource::Nofile);
    (limit.current, limit.maximum)
}
