//! The limits of this process, and the limits or the user of a program that a helper becomes.
//!
//! `CommandExt::uid` keeps root's groups, `CommandExt::groups` is unstable, and code between fork and exec has to be
//! async-signal-safe. So a helper program changes limits or its user, and then calls `exec` or CUDA.

use std::path::Path;

use clap::Args;
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};
use rustix::process::{
    Resource, Rlimit, getpriority_process, getrlimit, setpriority_process, setrlimit,
};
use rustix::thread::{CpuSet, sched_setaffinity};
use thiserror::Error;

use super::files::read_number;
use super::spawn::use_usual_scheduling;
use super::{FileError, FileResult, Host, Pid, root_hint};
use crate::failure::Failure;

/// The hidden subcommand of `mig-mps` that applies limits and becomes the control program.
pub const LAUNCH: &str = "launch";
/// The hidden subcommand that becomes a user and initializes CUDA.
pub const ATTACH: &str = "attach";
/// The hidden subcommand that computes on a device, as a program of the self-test.
pub const COMPUTE: &str = "compute";
/// The hidden subcommand that keeps the daemon of a device while programs of `run --private` use it.
pub const KEEP: &str = "keep";
/// The hidden subcommand that a container engine runs before it starts a container.
pub const ADMIT: &str = "admit";

/// The hidden subcommands.
pub const HELPERS: [&str; 5] = [LAUNCH, ATTACH, COMPUTE, KEEP, ADMIT];

/// The limits of a program, which are arguments of the helper.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[group(required = true, multiple = true)]
pub struct Limits {
    /// The CPUs [default: the caller's]
    #[arg(long, value_delimiter = ',')]
    pub cpus: Option<Vec<usize>>,
    /// The number of files it may have open [default: the caller's]
    #[arg(long)]
    pub files: Option<u64>,
    /// Take fewer files where the system does not allow so many
    #[arg(long, requires = "files")]
    pub or_fewer: bool,
}

/// A limit that cannot be applied, or one of this process that is too low.
#[derive(Debug, Error)]
pub enum LimitsError {
    #[error("the system does not allow {files} open files: {error}")]
    Files { files: u64, error: FileError },
    #[error("the system does not allow these CPUs: {0}")]
    Cpus(FileError),
    #[error("cannot become user {uid}: {error}")]
    User { uid: u32, error: FileError },
    #[error(
        "the stack limit (RLIMIT_STACK) is {} KiB, but this command needs {} KiB",
        allowed >> 10, MIN_STACK_BYTES >> 10
    )]
    SmallStack { allowed: u64 },
    /// A daemon would inherit it from the shell, and it would end the daemon later.
    #[error("a daemon would inherit a limit of {what}: {allowed} {unit}")]
    Inherited {
        what: &'static str,
        allowed: u64,
        unit: &'static str,
        /// The letter for `ulimit`.
        flag: char,
    },
    /// A daemon would inherit it from the shell, and be slow.
    #[error("a daemon would inherit the priority of this shell: nice {0}")]
    Nice(i32),
    #[error("a daemon would inherit the scheduling policy of this shell")]
    Policy,
    #[error("this process may have only {0} files open, but needs {MIN_OPEN_FILES}")]
    FewFiles(u64),
}

impl Failure for LimitsError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            // The kernel refuses what nobody may set with the same error as what only this user may not set.
            Self::Files { files, .. }
                if read_number("/proc/sys/fs/nr_open").is_none_or(|most| *files > most) =>
            {
                "run `sysctl fs.nr_open` to see the maximum of the system".to_owned()
            }
            Self::Files { .. } => {
                "run `ulimit -Hn` to see the maximum of this shell; the limit is in /etc/security/limits.conf or in \
                 the systemd unit"
                    .to_owned()
            }
            Self::Cpus(_) => "run `lscpu` to see the CPUs of this machine".to_owned(),
            Self::User { .. } => root_hint(),
            Self::SmallStack { .. } => format!(
                "run `ulimit -s {}`; if the shell refuses that, change the limit in /etc/security/limits.conf or in \
                 the systemd unit",
                MIN_STACK_BYTES >> 10
            ),
            Self::Inherited { flag, .. } => format!(
                "run `ulimit -{flag} unlimited`; if the shell refuses that, change the limit in \
                 /etc/security/limits.conf or in the systemd unit"
            ),
            Self::Nice(_) => "use a shell that was not started with nice".to_owned(),
            Self::Policy => "use a shell that was not started with chrt".to_owned(),
            Self::FewFiles(_) => format!("run `ulimit -n {MIN_OPEN_FILES}`"),
        })
    }
}

impl Limits {
    /// Returns the arguments of the helper for these limits. The program's arguments come after them.
    pub fn to_args(&self) -> Vec<String> {
        let cpus = self.cpus.as_ref().map(|cpus| join_with_commas(cpus));
        let files = self.files.map(|files| files.to_string());
        let mut words = option_args([("--cpus", cpus), ("--files", files)]);
        words.extend(self.or_fewer.then(|| "--or-fewer".to_owned()));
        words
    }

    /// Applies the limits to this process. After an error the process must exit.
    pub fn apply(&self) -> Result<(), LimitsError> {
        self.apply_file_limit()?;
        let Some(cpus) = &self.cpus else {
            return Ok(());
        };
        let mut set = CpuSet::new();
        for &cpu in cpus {
            if cpu >= CpuSet::MAX_CPU {
                let why = format!(
                    "there is no CPU {cpu}: Linux counts to {}",
                    CpuSet::MAX_CPU - 1
                );
                return Err(LimitsError::Cpus(FileError::other(why)));
            }
            set.set(cpu);
        }
        sched_setaffinity(None, &set).map_err(|error| LimitsError::Cpus(error.into()))
    }

    fn apply_file_limit(&self) -> Result<(), LimitsError> {
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
}

fn join_with_commas(numbers: &[impl ToString]) -> String {
    let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    numbers.join(",")
}

/// Returns the options that have a value, as arguments.
fn option_args<const N: usize>(options: [(&str, Option<String>); N]) -> Vec<String> {
    options
        .into_iter()
        .filter_map(|(name, value)| Some([name.to_owned(), value?]))
        .flatten()
        .collect()
}

/// The user as which the helper initializes CUDA, which are its arguments.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct BecomeUser {
    /// The user [default: the caller]
    #[arg(long, requires = "gid")]
    pub uid: Option<u32>,
    /// The user's own group
    #[arg(long, requires = "uid")]
    pub gid: Option<u32>,
    /// The groups of the user's processes, which the caller has looked up: a name service may not answer
    #[arg(long, requires = "uid", value_delimiter = ',')]
    pub groups: Vec<u32>,
    /// Stay the caller. A helper without arguments is a command that somebody looks for
    #[arg(long, required_unless_present = "uid")]
    pub as_caller: bool,
}

impl BecomeUser {
    /// Returns the arguments of the helper for this user.
    pub fn to_args(&self) -> Vec<String> {
        if self.uid.is_none() {
            return vec!["--as-caller".to_owned()];
        }
        option_args([
            ("--uid", self.uid.map(|uid| uid.to_string())),
            ("--gid", self.gid.map(|gid| gid.to_string())),
            ("--groups", self.uid.map(|_| join_with_commas(&self.groups))),
        ])
    }

    /// Becomes the user. After an error the process must exit.
    pub fn apply(&self) -> Result<(), LimitsError> {
        if self.as_caller {
            return Ok(());
        }
        let (Some(uid), Some(gid)) = (self.uid, self.gid) else {
            return Ok(());
        };
        self.become_user(Uid::from_raw(uid), Gid::from_raw(gid))
            .map_err(|error| LimitsError::User { uid, error })
    }

    fn become_user(&self, uid: Uid, gid: Gid) -> FileResult<()> {
        let groups: Vec<Gid> = self.groups.iter().copied().map(Gid::from_raw).collect();
        setgroups(&groups)?;
        setgid(gid)?;
        setuid(uid)?;
        // The process must not be able to become root again.
        if !uid.is_root() && setuid(Uid::from_raw(0)).is_ok() {
            return Err(FileError::other("the way back to root is open"));
        }
        Ok(())
    }
}

/// The stack that this program may need, in bytes. `up` of 56 devices on a simulated node takes 176 KiB.
const MIN_STACK_BYTES: u64 = 1 << 20;

/// The kernel's default: without a limit, programs have another memory layout.
const USUAL_STACK: u64 = 8 << 20;

/// Raises the limit of the stack if it is too low: this program could not even read its arguments.
pub fn raise_stack() -> Result<(), LimitsError> {
    let is_small = |limit: &u64| *limit < MIN_STACK_BYTES;
    if getrlimit(Resource::Stack)
        .current
        .is_some_and(|now| is_small(&now))
    {
        raise_limit(Resource::Stack, USUAL_STACK);
    }
    match getrlimit(Resource::Stack).current.filter(is_small) {
        Some(allowed) => Err(LimitsError::SmallStack { allowed }),
        None => Ok(()),
    }
}

/// Raises the limits of memory to their maximum. At a lower one this program would abort, and daemons inherit them.
pub fn raise_memory() {
    for resource in [Resource::As, Resource::Data] {
        let maximum = getrlimit(resource).maximum;
        let raised = Rlimit {
            current: maximum,
            maximum,
        };
        // Everybody may set a limit to its maximum.
        let _ = setrlimit(resource, raised);
    }
}

/// Gives this process the limits and the priority that a service has, for the daemons that inherit them. Fails if the
/// system does not allow it.
pub fn use_service_limits() -> Result<(), LimitsError> {
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
            return Err(LimitsError::Inherited {
                what,
                allowed: allowed / per,
                unit,
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
    // Those of the first process of this machine, whatever root directory another part of this program reads.
    let first = Host::at(Path::new("/")).find_process(Pid(1));
    if let Some(signals) = first.and_then(|first| first.soft_limit("Max pending signals")) {
        raise_limit(Resource::Sigpending, signals);
    }
    use_usual_scheduling().map_err(|_| LimitsError::Policy)?;
    match getpriority_process(None) {
        Ok(0) | Err(_) => Ok(()),
        Ok(nice) => setpriority_process(None, 0).map_err(|_| LimitsError::Nice(nice)),
    }
}

/// Raises a lower limit to `wanted`, or as far as its present maximum allows. Root can raise the maximum too.
fn raise_limit(resource: Resource, wanted: u64) {
    let present = getrlimit(resource);
    if present.current.is_none_or(|now| now >= wanted) {
        return;
    }
    let most = present.maximum;
    for maximum in [most.map(|most| most.max(wanted)), most] {
        let limit = Rlimit {
            current: Some(maximum.map_or(wanted, |maximum| maximum.min(wanted))),
            maximum,
        };
        if setrlimit(resource, limit).is_ok() {
            return;
        }
    }
}

/// The limit of open files that this process requests: each daemon that is queried in parallel needs some.
const WANTED_OPEN_FILES: u64 = 4096;

/// The lowest limit of open files at which this program, an MPS daemon or a client works. With fewer, existing files could not
/// be opened and would seem to be missing. On an H200 a daemon worked with 64; with 20 its server did not start and its log
/// grew without pause. A client with 10, 24 or 26 hangs the device for everybody, and one with 48 works.
pub const MIN_OPEN_FILES: u64 = 64;

/// Raises the limit of open files of this process.
pub fn raise_open_files() -> Result<(), LimitsError> {
    raise_limit(Resource::Nofile, WANTED_OPEN_FILES);
    match getrlimit(Resource::Nofile).current {
        Some(few) if few < MIN_OPEN_FILES => Err(LimitsError::FewFiles(few)),
        _ => Ok(()),
    }
}

/// The limit of open files that a program gets whose own is too low for an MPS client.
const CLIENT_FILES: u64 = 1024;

/// Raises the limit of open files, which programs that this process becomes keep, if an MPS client could not live with
/// it.
pub fn raise_client_files() -> Result<(), LimitsError> {
    let limit = getrlimit(Resource::Nofile);
    let Some(few) = limit.current.filter(|now| *now < MIN_OPEN_FILES) else {
        return Ok(());
    };
    let raised = limit.maximum.unwrap_or(CLIENT_FILES).min(CLIENT_FILES);
    let wanted = Rlimit {
        current: Some(raised),
        maximum: limit.maximum,
    };
    if raised < MIN_OPEN_FILES || setrlimit(Resource::Nofile, wanted).is_err() {
        return Err(LimitsError::FewFiles(few.max(raised)));
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
pub fn open_file_limits() -> (Option<u64>, Option<u64>) {
    let limit = getrlimit(Resource::Nofile);
    (limit.current, limit.maximum)
}
