//! The user and limits of a program that the helper starts.
//!
//! `CommandExt::uid` keeps root's groups, `CommandExt::groups` is unstable, and code between fork and exec has to be
//! async-signal-safe. So a helper program changes user and limits, and then calls `exec`.

use std::ffi::CString;
use std::{fs, io};

use clap::Args;
use nix::unistd::{Gid, Uid, initgroups, setgid, setgroups, setuid};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use thiserror::Error;

use super::as_root;

/// The hidden subcommand of `mig-mps` that applies limits and becomes the control program.
pub const LAUNCH: &str = "launch";
/// The hidden subcommand that applies limits and initialises CUDA.
pub const ATTACH: &str = "attach";

/// The user and the limits of a program, which are arguments of the helper.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The user [default: the caller]
    #[arg(long, requires = "gid")]
    pub uid: Option<u32>,
    /// The user's own group
    #[arg(long, requires = "uid")]
    pub gid: Option<u32>,
    /// The user whose supplementary groups it gets [default: none]
    #[arg(long, requires = "uid", value_name = "USER")]
    pub groups_of: Option<String>,
    /// The CPUs [default: the caller's]
    #[arg(long, value_delimiter = ',')]
    pub cpus: Option<Vec<usize>>,
    /// The number of files it may have open [default: the caller's]
    #[arg(long)]
    pub files: Option<u64>,
    /// Take fewer files where the system does not allow so many
    #[arg(long)]
    pub or_fewer: bool,
}

/// A limit that cannot be applied.
#[derive(Debug, Error)]
pub enum LimitsError {
    #[error("the system does not allow {files} open files: {error}")]
    Files { files: u64, error: io::Error },
    #[error("the system does not allow these CPUs: {0}")]
    Cpus(io::Error),
    #[error("cannot become user {uid}: {error}")]
    User { uid: u32, error: io::Error },
}

impl LimitsError {
    /// Returns the remedy.
    pub fn hint(&self) -> String {
        match self {
            Self::Files { files, .. } if most_open_files().is_none_or(|most| *files > most) => {
                "sysctl fs.nr_open shows the most that the system allows".to_owned()
            }
            Self::Files { .. } => {
                "ulimit -Hn shows the most that this shell allows; the limit is in \
                                   /etc/security/limits.conf or in the systemd unit"
                    .to_owned()
            }
            Self::Cpus(_) => "lscpu shows the CPUs of this machine".to_owned(),
            Self::User { .. } => as_root(),
        }
    }
}

/// The highest limit of open files that anybody may set. The kernel refuses a higher one with the same error as one
/// that only this user may not set.
fn most_open_files() -> Option<u64> {
    let most = fs::read_to_string("/proc/sys/fs/nr_open").ok()?;
    most.trim().parse().ok()
}

impl Limits {
    /// Returns the uid and gid of another user.
    pub fn user(&self) -> Option<(u32, u32)> {
        self.uid.zip(self.gid)
    }

    /// Returns the arguments of a helper for these limits. The program's arguments come after them.
    pub fn words(&self, helper: &str) -> Vec<String> {
        let numbers = |cpus: &Vec<usize>| cpus.iter().map(usize::to_string).collect::<Vec<_>>();
        let options = [
            ("--uid", self.uid.map(|uid| uid.to_string())),
            ("--gid", self.gid.map(|gid| gid.to_string())),
            ("--groups-of", self.groups_of.clone()),
            (
                "--cpus",
                self.cpus.as_ref().map(|cpus| numbers(cpus).join(",")),
            ),
            ("--files", self.files.map(|files| files.to_string())),
        ];
        let mut words = vec![helper.to_owned()];
        for (name, value) in options {
            words.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
        }
        words.extend(self.or_fewer.then(|| "--or-fewer".to_owned()));
        words
    }

    /// Applies the limits to this process, privileged ones first. After an error the process must exit.
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
        let Some((uid, gid)) = self.user() else {
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
        let wanted = Rlimit {
            current: Some(files),
            maximum: hard.map(|hard| hard.max(files)),
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
        // The process must not be able to become root again.
        if !uid.is_root() && setuid(Uid::from_raw(0)).is_ok() {
            return Err(io::Error::other("the way back to root is open"));
        }
        Ok(())
    }
}
