//! What this process becomes before it turns into another program: another user, with other limits.
//!
//! `CommandExt::uid` alone leaves root's groups, its `groups` is unstable, and what runs between fork and exec
//! may not be safe code. So it is done in a program of its own, which then calls `exec`.

use std::ffi::CString;
use std::io;

use nix::unistd::{Gid, Uid, initgroups, setgid, setgroups, setuid};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use thiserror::Error;

/// The hidden subcommand of `mig-mps` that takes limits and becomes the control program.
pub const LAUNCH: &str = "launch";

/// As whom and within which limits a program shall run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The user and the user's own group; `None` for the caller's.
    pub user: Option<(u32, u32)>,
    /// Whose groups it gets; none but its own without.
    pub groups_of: Option<String>,
    /// The CPUs it may run on; `None` for the caller's.
    pub cpus: Option<Vec<usize>>,
    /// How many files it may have open; `None` for as many as the caller.
    pub files: Option<u64>,
    /// Whether fewer files will do where the system does not allow so many.
    pub or_fewer: bool,
}

/// What could not be had.
#[derive(Debug, Error)]
pub enum LimitsError {
    /// So many files.
    #[error("the system does not allow {files} open files: {error}")]
    Files {
        /// How many.
        files: u64,
        /// What the system said.
        error: io::Error,
    },
    /// Those CPUs.
    #[error("the system does not allow these CPUs: {0}")]
    Cpus(io::Error),
    /// That user.
    #[error("cannot become user {uid}: {error}")]
    User {
        /// The user's number.
        uid: u32,
        /// What the system said.
        error: io::Error,
    },
}

impl Limits {
    /// The arguments that tell the helper of them; what it runs comes after these.
    pub fn words(&self) -> Vec<String> {
        let mut words = vec![LAUNCH.to_owned()];
        let mut say = |flag: &str, value: String| words.extend([flag.to_owned(), value]);
        if let Some((uid, gid)) = self.user {
            say("--uid", uid.to_string());
            say("--gid", gid.to_string());
        }
        if let Some(name) = &self.groups_of {
            say("--groups-of", name.clone());
        }
        if let Some(cpus) = &self.cpus {
            let cpus: Vec<String> = cpus.iter().map(usize::to_string).collect();
            say("--cpus", cpus.join(","));
        }
        if let Some(files) = self.files {
            say("--files", files.to_string());
        }
        words.extend(self.or_fewer.then(|| "--or-fewer".to_owned()));
        words
    }

    /// Gives them to this very process, for the program that it is about to turn into. What takes
    /// privileges comes before they go.
    ///
    /// # Errors
    /// [`LimitsError`]; the process must end then.
    pub fn take(&self) -> Result<(), LimitsError> {
        self.take_files()?;
        if let Some(cpus) = &self.cpus {
            let mut set = CpuSet::new();
            for &cpu in cpus {
                if cpu >= CpuSet::MAX_CPU {
                    let why = format!(
                        "there is no CPU {cpu}: Linux counts to {}",
                        CpuSet::MAX_CPU - 1
                    );
                    return Err(LimitsError::Cpus(io::Error::other(why)));
                }
                set.set(cpu);
            }
            sched_setaffinity(None, &set).map_err(|error| LimitsError::Cpus(error.into()))?;
        }
        let Some((uid, gid)) = self.user else {
            return Ok(());
        };
        self.become_user(Uid::from_raw(uid), Gid::from_raw(gid))
            .map_err(|error| LimitsError::User { uid, error })
    }

    fn take_files(&self) -> Result<(), LimitsError> {
        let Some(files) = self.files else {
            return Ok(());
        };
        let hard = getrlimit(Resource::Nofile).maximum;
        let raised = hard.map(|hard| hard.max(files));
        let wanted = Rlimit {
            current: Some(files),
            maximum: raised,
        };
        let mut answer = setrlimit(Resource::Nofile, wanted);
        if answer.is_err() && self.or_fewer {
            let most = Rlimit {
                current: hard,
                maximum: hard,
            };
            answer = setrlimit(Resource::Nofile, most);
        }
        answer.map_err(|error| LimitsError::Files {
            files,
            error: error.into(),
        })
    }

    fn become_user(&self, uid: Uid, gid: Gid) -> io::Result<()> {
        match &self.groups_of {
            Some(name) => initgroups(&CString::new(name.as_str())?, gid)?,
            None => setgroups(&[gid])?,
        }
        setgid(gid)?;
        setuid(uid)?;
        // Root is gone for good, or nothing of this may go on.
        if !uid.is_root() && setuid(Uid::from_raw(0)).is_ok() {
            return Err(io::Error::other("the way back to root is open"));
        }
        Ok(())
    }
}

/// A limit of memory under which this program aborts, wherever it is by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// Addresses, also those that are only reserved.
    Addresses,
    /// Memory of its own that it may write to.
    Data,
    /// The stack of the first thread.
    Stack,
}

/// Too little memory for a change: it would end half-way.
#[derive(Debug, Error)]
#[error(
    "{what} is limited to {} KiB, and this needs {} KiB: it would end half-way", allowed >> 10, needed >> 10
)]
pub struct TooLittleMemory {
    what: &'static str,
    flag: char,
    allowed: u64,
    needed: u64,
}

impl TooLittleMemory {
    /// What to do about it.
    pub fn hint(&self) -> String {
        format!(
            "ulimit -{} {} allows as much; where the shell refuses that, the limit is in /etc/security/limits.conf or in \
             the systemd unit",
            self.flag,
            self.needed >> 10
        )
    }
}

impl Memory {
    const ALL: [Self; 3] = [Self::Addresses, Self::Data, Self::Stack];

    fn resource(self) -> Resource {
        match self {
            Self::Addresses => Resource::As,
            Self::Data => Resource::Data,
            Self::Stack => Resource::Stack,
        }
    }

    /// How much a change may need, in bytes. Measured with `up` of 56 devices on a simulated node: 1.3 GB of addresses
    /// on 2 CPUs, and 21 GB where every thread has a heap of its own, as on many CPUs; 332 MB of data; 176 KiB of stack.
    fn needed(self) -> u64 {
        match self {
            Self::Addresses => 32 << 30,
            Self::Data => 1 << 30,
            Self::Stack => 1 << 20,
        }
    }

    /// Raises the limit as far as the system allows, if it is too low. Daemons inherit that, and need more than this
    /// program.
    fn raise(self) -> Result<(), TooLittleMemory> {
        let needed = self.needed();
        let limit = getrlimit(self.resource());
        if limit.current.is_none_or(|now| now >= needed) {
            return Ok(());
        }
        let wanted = match self {
            // The kernel's default: without any limit, programs have another layout in memory.
            Self::Stack => Some(limit.maximum.map_or(8 << 20, |most| most.min(8 << 20))),
            _ => limit.maximum,
        };
        let raised = Rlimit {
            current: wanted,
            maximum: limit.maximum,
        };
        let is_raised = setrlimit(self.resource(), raised).is_ok();
        let now = if is_raised { wanted } else { limit.current };
        match now {
            Some(allowed) if allowed < needed => Err(self.too_little(allowed)),
            _ => Ok(()),
        }
    }

    fn too_little(self, allowed: u64) -> TooLittleMemory {
        let (what, flag) = match self {
            Self::Addresses => ("virtual memory (RLIMIT_AS)", 'v'),
            Self::Data => ("memory for data (RLIMIT_DATA)", 'd'),
            Self::Stack => ("the stack (RLIMIT_STACK)", 's'),
        };
        TooLittleMemory {
            what,
            flag,
            allowed,
            needed: self.needed(),
        }
    }
}

/// Raises the limits of memory that are too low for a change. Fails where the system does not allow enough.
pub fn raise_memory() -> Result<(), TooLittleMemory> {
    Memory::ALL.into_iter().try_for_each(Memory::raise)
}

/// Raises the limit of the stack alone, without which this program cannot even read its arguments.
pub fn raise_stack() -> Result<(), TooLittleMemory> {
    Memory::Stack.raise()
}

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
