//! Processes as `/proc` shows them, and their signals, through a pidfd that is checked to be of the same process.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use std::{fmt, fs};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid as RawPid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal,
    set_child_subreaper, wait,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::batch_job::{has_group, has_job_below, job_group_path};
use super::files::read_proc_field;
use super::{BatchJob, FileError, FileResult, Host, Interrupt, Uid, Workload, to_printable};

/// A process id. Ids are reused: a process is identified by pid and [`StartTime`].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Pid(pub u32);

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The start time of a process, in clock ticks since boot (field 22 of `/proc/PID/stat`, proc(5)), the same in every time
/// namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StartTime(pub u64);

/// The clock ticks that this process's time namespace adds to the time since boot, in `/proc` too (`time_namespaces(7)`).
static BOOT_TIME_ADDED: LazyLock<i64> = LazyLock::new(|| {
    // The offsets are those of its children.
    if own_namespace("time") != own_namespace("time_for_children") {
        return 0;
    }
    let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    parse_boot_time_offset(&offsets, rustix::param::clock_ticks_per_second()).unwrap_or(0)
});

fn own_namespace(name: &str) -> Option<PathBuf> {
    fs::read_link(Path::new("/proc/self/ns").join(name)).ok()
}

/// Returns the ticks of the line `boottime SECONDS NANOSECONDS`.
fn parse_boot_time_offset(offsets: &str, ticks_per_second: u64) -> Option<i64> {
    let line = offsets
        .lines()
        .find_map(|line| line.strip_prefix("boottime"))?;
    let mut numbers = line.split_whitespace().map(str::parse::<i64>);
    let (seconds, nanoseconds) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    let per_second = i64::try_from(ticks_per_second).ok()?;
    seconds
        .checked_mul(per_second)?
        .checked_add(nanoseconds / (1_000_000_000 / per_second))
}

/// `PF_KTHREAD` among the flags of field 9 of `/proc/PID/stat`.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// The system calls in which a thread waits for several files: `poll`, `ppoll`, `select`, `pselect6`, `epoll_wait`,
/// `epoll_pwait` (the kernel's `unistd.h` of each architecture).
#[cfg(target_arch = "x86_64")]
const POLLS: &[i64] = &[7, 271, 23, 270, 232, 281];
#[cfg(target_arch = "aarch64")]
const POLLS: &[i64] = &[73, 72, 22];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const POLLS: &[i64] = &[];

/// The most that is read of a command line, in bytes.
const MAX_COMMAND_LINE_BYTES: u64 = 4096;

/// The most that is read of the control groups, in bytes. A path has at most 4096, and version 1 a dozen paths.
const MAX_CONTROL_GROUP_BYTES: u64 = 64 << 10;

/// `PF_EXITING` among them.
const EXITING: u64 = 0x4;

/// A live process in `/proc`, not a zombie: without a parent that reaps it, a dead daemon stays a zombie for ever.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "the facts are independent")]
pub struct Process {
    pub pid: Pid,
    pub parent: Pid,
    pub started: StartTime,
    /// A signal or a debugger has stopped it: it does not answer.
    pub is_stopped: bool,
    /// Its main thread computes, or would if it got a CPU.
    pub is_running: bool,
    /// The kernel is ending it, which takes a while if it had a GPU open.
    pub is_ending: bool,
    /// The name of its program, cut to 15 bytes by the kernel.
    pub name: String,
    /// It is a kernel thread, without program and files.
    pub(super) is_kernel: bool,
    pub(super) directory: PathBuf,
}

impl Process {
    /// Returns `None` for a zombie. An error does not mean that there is no such process.
    pub(super) fn from_proc(proc: &Path, pid: Pid) -> FileResult<Option<Self>> {
        let directory = proc.join(pid.to_string());
        let stat = fs::read(directory.join("stat"))?;
        Ok(Self::parse(&String::from_utf8_lossy(&stat), directory))
    }

    /// Parses a line of `/proc/PID/stat`.
    fn parse(stat: &str, directory: PathBuf) -> Option<Self> {
        let StatLine { pid, name, fields } = StatLine::parse(stat)?;
        let state = *fields.first()?;
        if matches!(state, "Z" | "X" | "x") {
            return None;
        }
        let flags: u64 = fields.get(6)?.parse().ok()?;
        let started: u64 = fields.get(19)?.parse().ok()?;
        Some(Self {
            pid,
            parent: Pid(fields.get(1)?.parse().ok()?),
            started: StartTime(started.saturating_add_signed(-*BOOT_TIME_ADDED)),
            is_stopped: matches!(state, "T" | "t"),
            is_running: state == "R",
            is_ending: flags & EXITING != 0,
            name: name.to_owned(),
            is_kernel: flags & KERNEL_THREAD != 0,
            directory,
        })
    }

    /// Returns its effective uid.
    pub fn owner(&self) -> Option<Uid> {
        fs::metadata(&self.directory)
            .ok()
            .map(|meta| Uid(meta.uid()))
    }

    /// Returns the start of its command line, or nothing if it is hidden. A command line may be megabytes long.
    fn command_words(&self) -> Vec<String> {
        let mut line = Vec::new();
        if let Ok(file) = fs::File::open(self.directory.join("cmdline")) {
            let _ = file.take(MAX_COMMAND_LINE_BYTES).read_to_end(&mut line);
        }
        line.split(|byte| *byte == 0)
            .map(|word| to_printable(&String::from_utf8_lossy(word)))
            .collect()
    }

    /// Returns its command line, or its name if that is hidden or empty.
    pub fn command_line(&self) -> String {
        let mut words = self.command_words();
        words.retain(|word| !word.is_empty());
        if words.is_empty() {
            to_printable(&self.name)
        } else {
            words.join(" ")
        }
    }

    /// Returns its groups, as far as they are visible.
    pub fn groups(&self) -> Vec<u32> {
        // Real, effective, saved, and file system gid.
        let own = self.read_gids("Gid:").into_iter().nth(3);
        own.into_iter().chain(self.read_gids("Groups:")).collect()
    }

    fn read_gids(&self, name: &str) -> Vec<u32> {
        read_proc_field(self.directory.join("status"), name)
            .unwrap_or_default()
            .split_whitespace()
            .filter_map(|number| number.parse().ok())
            .collect()
    }

    /// Returns the value of a variable at its start, or `None` if it was unset or is hidden: for paths and comparisons, not
    /// for a terminal.
    pub fn environment_bytes(&self, variable: &str) -> Option<OsString> {
        let bytes = fs::read(self.directory.join("environ")).ok()?;
        bytes.split(|byte| *byte == 0).find_map(|entry| {
            let value = entry
                .strip_prefix(variable.as_bytes())?
                .strip_prefix(b"=")?;
            Some(OsString::from_vec(value.to_owned()))
        })
    }

    /// Returns its environment at its start, or `None` if that is hidden, like another user's.
    pub fn environ(&self) -> Option<Environ> {
        let bytes = fs::read(self.directory.join("environ")).ok()?;
        let entries = bytes.split(|byte| *byte == 0).filter_map(|entry| {
            let entry = String::from_utf8_lossy(entry);
            let (name, value) = entry.split_once('=')?;
            Some((name.to_owned(), to_printable(value)))
        });
        Some(entries.collect())
    }

    /// Returns the file name of its program from its first argument, like `ps`. A process can change it.
    pub fn program_name(&self) -> String {
        let words = self.command_words();
        match words.first().and_then(|path| path.rsplit('/').next()) {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => to_printable(&self.name),
        }
    }

    pub fn arguments(&self) -> Vec<String> {
        self.command_words().into_iter().skip(1).collect()
    }

    /// Returns its mount namespace and its root directory, which differ in a container, or `None` if they are hidden. The
    /// directory itself is not opened: its file system may hang.
    pub fn root_directory(&self) -> Option<(u64, PathBuf)> {
        let mounts = fs::metadata(self.directory.join("ns/mnt")).ok()?.ino();
        let root = fs::read_link(self.directory.join("root")).ok()?;
        Some((mounts, root))
    }

    /// Returns its limit of open files, or `None` if that is hidden.
    pub fn open_file_limit(&self) -> Option<u64> {
        self.soft_limit("Max open files")
    }

    /// Returns a soft limit by the kernel's name for it, or `None` if that is hidden.
    pub(super) fn soft_limit(&self, name: &str) -> Option<u64> {
        let line = read_proc_field(self.directory.join("limits"), name)?;
        line.split_whitespace().next()?.parse().ok()
    }

    /// True if the file of its program was removed or replaced since it was started; `None` if that is hidden.
    pub fn is_replaced(&self) -> Option<bool> {
        let program = fs::read_link(self.directory.join("exe")).ok()?;
        Some(
            program
                .as_os_str()
                .as_encoded_bytes()
                .ends_with(b" (deleted)"),
        )
    }

    /// Returns its CPUs in the kernel's form `0-7,16`, or `None` if they are hidden.
    pub fn allowed_cpus(&self) -> Option<String> {
        read_proc_field(self.directory.join("status"), "Cpus_allowed_list:")
    }

    /// True if its main thread waits for several files, like an idle server program. `None` if that is hidden.
    pub fn is_polling(&self) -> Option<bool> {
        is_polling(&self.directory)
    }

    /// True if all its threads do so.
    pub fn is_polling_in_all_threads(&self) -> Option<bool> {
        self.is_polling()?;
        let mut tasks = fs::read_dir(self.directory.join("task")).ok()?.flatten();
        // Threads that have exited since do not count.
        Some(!tasks.any(|task| is_polling(&task.path()) == Some(false)))
    }

    /// Returns the time since its start.
    pub fn age(&self) -> Option<std::time::Duration> {
        let uptime = fs::read_to_string(self.directory.parent()?.join("uptime")).ok()?;
        let uptime: f64 = uptime.split_whitespace().next()?.parse().ok()?;
        #[allow(
            clippy::cast_precision_loss,
            reason = "ticks since boot stay far below 2^52"
        )]
        let started = self.started.0.saturating_add_signed(*BOOT_TIME_ADDED) as f64
            / rustix::param::clock_ticks_per_second() as f64;
        std::time::Duration::try_from_secs_f64((uptime - started).max(0.0)).ok()
    }

    /// Returns the lines of its `/proc/PID/cgroup`, or `None` if they are hidden, or too long to be anything but a user's.
    pub(super) fn control_groups(&self) -> Option<String> {
        let mut lines = Vec::new();
        let file = fs::File::open(self.directory.join("cgroup")).ok()?;
        let read = file
            .take(MAX_CONTROL_GROUP_BYTES)
            .read_to_end(&mut lines)
            .ok()?;
        ((read as u64) < MAX_CONTROL_GROUP_BYTES)
            .then(|| String::from_utf8_lossy(&lines).into_owned())
    }

    /// Returns the job, pod or container that it belongs to, or `None` if that cannot be seen.
    pub fn find_workload(&self) -> Option<Workload> {
        let groups = self.control_groups()?;
        let found = Workload::from_control_groups(&groups);
        if let Some(found) = found.as_ref().filter(|found| found.is_any()) {
            let mut found = found.clone();
            if found.is_only_container() {
                found.batch_job = BatchJob::from_control_groups(&groups);
            }
            // The root is above `proc/PID`.
            return Some(found.with_pod_name(self.directory.ancestors().nth(2)?));
        }
        let batch_job = BatchJob::from_control_groups(&groups)
            .or_else(|| BatchJob::from_environment(&self.environ()?));
        if batch_job.is_none() && !*SEES_ALL_GROUPS {
            return None;
        }
        found.map(|found| Workload { batch_job, ..found })
    }

    /// True if the process is in a control group, or in one below it.
    pub fn is_in_control_group(&self, group: &str) -> bool {
        has_group(&self.control_groups().unwrap_or_default(), group)
    }

    /// True if the process is in the control group of a job below this one.
    pub fn is_in_job_below(&self, group: &str) -> bool {
        has_job_below(&self.control_groups().unwrap_or_default(), group)
    }

    /// Returns the control group that a batch system other than Slurm has made for the job of this process.
    pub fn job_control_group(&self) -> Option<String> {
        job_group_path(&self.control_groups()?)
    }

    /// True if the process belongs to this job of this user.
    ///
    /// Its control group decides, which no user can change. Where Slurm makes none, or the process has left it, the variable
    /// decides with which the process was started. Any user can forge that one, so it counts for processes of the
    /// job's own user alone.
    pub fn is_of_slurm_job(&self, job: u32, user: Uid) -> bool {
        if let Some(of_group) = self.find_workload().and_then(|workload| workload.slurm_job) {
            return of_group == job;
        }
        let variable = self.environment_bytes("SLURM_JOB_ID");
        self.owner() == Some(user) && variable.is_some_and(|id| id == job.to_string().as_str())
    }
}

/// The inode of the namespace that has the whole tree of control groups (`PROC_CGROUP_INIT_INO` of Linux).
const ROOT_NAMESPACE_INODE: u64 = 0xEFFF_FFFB;

/// True if this process sees the groups from the root on. In a container, neighbours seem to be in none.
static SEES_ALL_GROUPS: LazyLock<bool> = LazyLock::new(|| {
    fs::metadata("/proc/self/ns/cgroup")
        .is_ok_and(|namespace| namespace.ino() == ROOT_NAMESPACE_INODE)
});

/// A line of `/proc/PID/stat`.
pub struct StatLine<'a> {
    pub pid: Pid,
    pub name: &'a str,
    /// The fields after the name, which may contain any character: they are counted from its last parenthesis.
    pub fields: Vec<&'a str>,
}

impl<'a> StatLine<'a> {
    pub fn parse(line: &'a str) -> Option<Self> {
        let (head, tail) = line.rsplit_once(')')?;
        let (pid, name) = head.split_once(" (")?;
        Some(Self {
            pid: Pid(pid.parse().ok()?),
            name,
            fields: tail.split_whitespace().collect(),
        })
    }
}

/// True if the process or thread with this directory is in one of the [`POLLS`]. `None` if that is hidden.
fn is_polling(directory: &Path) -> Option<bool> {
    let line = fs::read_to_string(directory.join("syscall")).ok()?;
    let number = line.split_whitespace().next()?;
    // `running` is no number, and -1 is no system call.
    Some(
        number
            .parse()
            .is_ok_and(|number: i64| POLLS.contains(&number)),
    )
}

/// The variables of a process at its start, with [printable](super::to_printable) values.
pub type Environ = BTreeMap<String, String>;

fn cannot_tell(pid: Pid, error: &FileError) -> FileError {
    let what = format!("cannot tell if process {pid} still runs: {error}");
    FileError::new(error.kind(), what)
}

/// True for `ENOENT`, and for `ESRCH` from a file in `/proc` that was opened before: the process has exited.
pub(super) fn is_process_gone(error: &FileError) -> bool {
    matches!(error.errno(), Some(Errno::NOENT | Errno::SRCH))
}

/// A process by its pidfd, which never refers to a later process with the same pid.
#[derive(Debug)]
pub struct ProcessHandle {
    pub pid: Pid,
    pidfd: OwnedFd,
}

impl Host {
    /// Opens the process with this pid and start time. Returns `None` if it is gone, and an error if that cannot be
    /// determined.
    pub fn open_process(&self, pid: Pid, started: StartTime) -> FileResult<Option<ProcessHandle>> {
        // Opened before the check: it cannot refer to another process afterwards.
        let held = match ProcessHandle::open(pid) {
            Ok(held) => held,
            Err(Errno::SRCH) => return Ok(None),
            Err(error) => return Err(cannot_tell(pid, &error.into())),
        };
        match Process::from_proc(&self.root.join("proc"), pid) {
            Ok(process) => Ok(process
                .filter(|process| process.started == started)
                .map(|_| held)),
            Err(_) if held.has_ended() => Ok(None),
            Err(error) => Err(cannot_tell(pid, &error)),
        }
    }

    /// Returns the inode of this process's pid namespace, or `None` if it is hidden. Pids of another namespace mean
    /// nothing here.
    pub fn pid_namespace(&self) -> Option<u64> {
        let namespace = std::fs::metadata(self.root.join("proc/self/ns/pid")).ok()?;
        Some(namespace.ino())
    }

    /// True if there is no process with this pid, or it has exited. Works even if `/proc` hides it.
    pub fn has_ended(&self, pid: Pid) -> bool {
        match ProcessHandle::open(pid) {
            // A zombie may still have threads, but has exited.
            _ if self.has_proc_entry(pid) => self.find_process(pid).is_none(),
            Ok(held) => held.has_ended(),
            Err(error) => error == Errno::SRCH,
        }
    }
}

/// Returns the kernel's form of a pid.
pub(super) fn raw_pid(pid: Pid) -> Option<RawPid> {
    i32::try_from(pid.0).ok().and_then(RawPid::from_raw)
}

impl ProcessHandle {
    /// Opens the process that has this pid now. Nothing but a child that was not waited for is sure to be the one meant.
    pub fn open(pid: Pid) -> Result<Self, Errno> {
        let raw = raw_pid(pid).ok_or(Errno::SRCH)?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty())?;
        Ok(Self { pid, pidfd })
    }

    /// Returns what to poll for the exit of the process.
    pub fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.pidfd, PollFlags::IN)
    }

    /// Sends a signal to the process.
    pub fn send_signal(&self, signal: Signal) -> FileResult<()> {
        Ok(pidfd_send_signal(&self.pidfd, signal)?)
    }

    /// Waits for the process to exit. Returns false on timeout.
    pub fn wait_for_exit(&self, limit: Duration) -> bool {
        self.wait_for_exit_until(Instant::now() + limit)
    }

    /// The same until a deadline.
    pub fn wait_for_exit_until(&self, until: Instant) -> bool {
        wait_until_ready(&mut [self.poll_fd()], until).unwrap_or(false)
    }

    /// Waits for the process to exit. Returns false on timeout, or on an interrupt.
    pub fn wait_for_exit_or_interrupt(&self, limit: Duration, interrupt: &Interrupt) -> bool {
        let mut watched = vec![self.poll_fd()];
        watched.extend(interrupt.poll_fd());
        let is_ready = wait_until_ready(&mut watched, Instant::now() + limit);
        is_ready.unwrap_or(false) && self.has_ended()
    }

    /// True if the process has exited.
    pub fn has_ended(&self) -> bool {
        self.wait_for_exit(Duration::ZERO)
    }
}

/// Waits until one of these is ready. Returns false on timeout.
pub(super) fn wait_until_ready(watched: &mut [PollFd<'_>], until: Instant) -> FileResult<bool> {
    loop {
        let remaining = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(remaining).map_err(io::Error::other)?;
        match poll(watched, Some(&timeout)) {
            Ok(count) => return Ok(count > 0),
            // A signal to this process means nothing here.
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Makes this process the parent of its children's children when their own parent exits.
pub fn adopt_descendants() -> FileResult<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Waits for all children that have exited. Returns the exit status of this one if it is among them.
pub fn reap_child(child: Pid) -> FileResult<Option<ExitStatus>> {
    let mut of_child = reap_all()?
        .into_iter()
        .filter(|(pid, _)| Some(*pid) == raw_pid(child));
    Ok(of_child.next().map(|(_, status)| status))
}

/// Waits for all children that have exited. Returns their exit statuses.
pub fn reap_all() -> FileResult<Vec<(RawPid, ExitStatus)>> {
    let mut exited = Vec::new();
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => exited.push((pid, ExitStatus::from_raw(status.as_raw()))),
            Err(Errno::INTR) => {}
            Ok(None) | Err(Errno::CHILD) => return Ok(exited),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_is_read() {
        let stat = "466 (a) b (c) S 447 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 123456 0 0";
        let process = Process::parse(stat, PathBuf::new()).unwrap();
        assert_eq!((process.pid, process.parent), (Pid(466), Pid(447)));
        assert_eq!(process.name, "a) b (c");
        assert_eq!(process.started, StartTime(123_456));
    }

    #[test]
    fn the_offset_of_a_time_namespace_is_read() {
        let offsets = "monotonic           5         0\nboottime       -86400 500000000\n";
        assert_eq!(parse_boot_time_offset(offsets, 100), Some(-8_639_950));
        assert_eq!(parse_boot_time_offset("", 100), None);
    }

    #[test]
    fn a_zombie_is_no_process() {
        let stat = "466 (nvidia-cuda-mps) Z 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 123456 0 0";
        assert!(Process::parse(stat, PathBuf::new()).is_none());
    }

    /// Seen on an H200: a server that had just been killed still existed while its GPU memory was freed.
    #[test]
    fn a_process_that_is_ending_differs_from_one_that_runs() {
        let stat = |flags: u64| {
            let rest = "1 0 0 0 0 0 0 0 20 0 1 0 123456 0 0";
            let stat = format!("466 (nvidia-cuda-mps) S 447 1 1 0 -1 {flags} {rest}");
            Process::parse(&stat, PathBuf::new()).unwrap().is_ending
        };
        assert!(!stat(4_194_560));
        assert!(stat(4_194_564));
    }

    #[test]
    fn a_process_is_opened_by_pid_and_start_time() {
        let host = Host::at(Path::new("/"));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid(child.id());
        let started = host.find_process(pid).unwrap().started;
        assert!(
            host.open_process(pid, StartTime(started.0 + 1))
                .unwrap()
                .is_none(),
            "another process"
        );
        let held = host.open_process(pid, started).unwrap().unwrap();
        assert!(!held.has_ended());
        held.send_signal(Signal::TERM).unwrap();
        assert!(held.wait_for_exit(Duration::from_secs(20)));
        // Not waited for yet, it is a zombie.
        assert!(host.has_ended(pid));
        assert!(!host.has_ended(Pid(std::process::id())));
        child.wait().unwrap();
        assert!(host.has_ended(pid));
        let gone = host.open_process(pid, started).unwrap();
        assert!(gone.is_none(), "it is gone");
    }
}
