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
