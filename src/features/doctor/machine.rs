//! Facts about the machine that only checks need.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};
use rustix::io::Errno;

use crate::config::{DEFAULT_PIPE_DIRECTORIES, MPS_PROGRAM_PREFIX};
use crate::host::{
    FileResult, Host, Pid, StatLine, list_directory, read_number, read_proc_field, to_printable,
};

/// The files in its pipe directory that a daemon may leave behind: its sockets, its lock and its process id.
const DAEMON_FILES: [&str; 4] = [
    "control",
    "control_lock",
    "control_privileged",
    "nvidia-cuda-mps-control.pid",
];

/// The files that the shared memory of an MPS server has before driver 580: `mps.shm.<uid>.<pid>`.
const SHARED_MEMORY_PREFIX: &str = "mps.shm.";

/// A process that has ended and that its parent has not reaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zombie {
    pub pid: Pid,
    pub parent: Pid,
    /// True if its parent is a daemon or an init process, which would have reaped it if it reaped at all.
    pub is_neglected: bool,
}

/// A mounted file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// The bytes that this user may still write.
    pub free: u64,
    pub is_read_only: bool,
}

/// True if this process may read and write a file, as far as its owner, groups and mode tell.
pub fn may_open(file: &Path) -> FileResult<bool> {
    match access(file, Access::READ_OK | Access::WRITE_OK) {
        Err(Errno::ACCESS) => Ok(false),
        tried => Ok(tried.map(|()| true)?),
    }
}

/// Returns the file system that a path is on.
pub fn file_system(path: &Path) -> FileResult<FileSystem> {
    let about = statvfs(path)?;
    Ok(FileSystem {
        free: about.f_bavail.saturating_mul(about.f_frsize),
        is_read_only: about.f_flag.contains(StatVfsMountFlags::RDONLY),
    })
}

impl Host {
    /// Returns the MPS programs that have ended and that nobody has reaped. Process tables leave them out.
    pub fn mps_zombies(&self, process_names: &BTreeMap<Pid, String>) -> Vec<Zombie> {
        let proc = self.under_root("proc");
        process_names
            .iter()
            .filter(|(_, name)| name.starts_with(MPS_PROGRAM_PREFIX))
            .filter_map(|(pid, _)| {
                let stat = fs::read(proc.join(pid.to_string()).join("stat")).ok()?;
                let stat = String::from_utf8_lossy(&stat);
                let StatLine { pid, fields, .. } = StatLine::parse(&stat)?;
                if fields.first() != Some(&"Z") {
                    return None;
                }
                let parent = Pid(fields.get(1)?.parse().ok()?);
                Some(Zombie {
                    pid,
                    parent,
                    is_neglected: reaps_children(&proc.join(parent.to_string())),
                })
            })
            .collect()
    }

    /// Returns the default pipe directories with files of a daemon, which may have ended.
    pub fn default_directories(&self) -> Vec<PathBuf> {
        DEFAULT_PIPE_DIRECTORIES
            .iter()
            .filter(|path| has_daemon_files(&self.under_root(path)))
            .map(PathBuf::from)
            .collect()
    }

    /// Returns the shared memory of MPS servers that have ended.
    pub fn leftover_memory(&self) -> Vec<PathBuf> {
        let mut leftover: Vec<PathBuf> = list_directory(&self.under_root("dev/shm"))
            .into_iter()
            .filter(|(_, name)| user_of_memory(name).is_some_and(|pid| !self.has_proc_entry(pid)))
            .map(|(_, name)| Path::new("/dev/shm").join(to_printable(&name)))
            .collect();
        leftover.sort();
        leftover
    }

    /// True if the machine has `NVSwitches`, which the fabric manager must set up.
    pub fn has_nvswitch(&self) -> bool {
        self.under_root("dev/nvidia-nvswitch0").exists()
            || self.under_root("dev/nvidia-nvswitchctl").exists()
    }

    /// Returns the security label of this process, of `SELinux` or `AppArmor`; `None` without either.
    pub fn security_label(&self) -> Option<String> {
        let text = fs::read_to_string(self.under_root("proc/self/attr/current")).ok()?;
        let label = to_printable(text.trim_matches(['\0', '\n', ' ']));
        (!label.is_empty()).then_some(label)
    }

    /// True if `SELinux` enforces its policy.
    pub fn selinux_enforces(&self) -> bool {
        fs::read_to_string(self.under_root("sys/fs/selinux/enforce"))
            .is_ok_and(|text| text.trim() == "1")
    }
}

/// True for an MPS program, which reaps its children, and for the init process of a machine or a container, which reaps
/// those of others.
fn reaps_children(process: &Path) -> bool {
    process.ends_with("1")
        || read_proc_field(process.join("status"), "NSpid:")
            .is_some_and(|pids| pids.split_whitespace().last() == Some("1"))
        || fs::read_to_string(process.join("comm"))
            .is_ok_and(|name| name.starts_with(MPS_PROGRAM_PREFIX))
}

fn has_daemon_files(directory: &Path) -> bool {
    DAEMON_FILES
        .iter()
        .any(|file| fs::symlink_metadata(directory.join(file)).is_ok())
}

/// Returns the process that a file of shared memory is named for.
fn user_of_memory(name: &str) -> Option<Pid> {
    let (_, pid) = name.strip_prefix(SHARED_MEMORY_PREFIX)?.split_once('.')?;
    Some(Pid(pid.split('.').next()?.parse().ok()?))
}

/// The room that the control group of this process and the groups above it leave. Only version 2 of control groups is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupRoom {
    /// The number of processes and threads that may still be started; `None` without a limit.
    pub tasks: Option<u64>,
    /// The most main memory in bytes, used or not; `None` without a limit.
    pub memory: Option<u64>,
}

impl CgroupRoom {
    /// Reads it below a root.
    pub fn read_from(root: &Path) -> Self {
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let path = groups.lines().find_map(|line| line.strip_prefix("0::/"));
        let tree = root.join("sys/fs/cgroup");
        let mut least = Self::default();
        for group in Path::new(path.unwrap_or_default()).ancestors() {
            let group = tree.join(group);
            let tasks = read_number(group.join("pids.max")).map(|most| {
                let used = read_number(group.join("pids.current")).unwrap_or(0);
                most.saturating_sub(used)
            });
            let memory = read_number(group.join("memory.max"));
            least.tasks = [least.tasks, tasks].into_iter().flatten().min();
            least.memory = [least.memory, memory].into_iter().flatten().min();
        }
        least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(CgroupRoom::read_from(root.path()), CgroupRoom::default());
        write("proc/self/cgroup", "0::/a.slice/b.scope\n");
        assert_eq!(CgroupRoom::read_from(root.path()), CgroupRoom::default());
        write("sys/fs/cgroup/a.slice/pids.max", "100\n");
        write("sys/fs/cgroup/a.slice/pids.current", "90\n");
        write("sys/fs/cgroup/a.slice/b.scope/pids.max", "max\n");
        write("sys/fs/cgroup/a.slice/b.scope/memory.max", "4096\n");
        let left = CgroupRoom {
            tasks: Some(10),
            memory: Some(4096),
        };
        assert_eq!(CgroupRoom::read_from(root.path()), left);
    }
}
