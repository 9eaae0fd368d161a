//! The rest of the machine, as far as MIG and MPS depend on it: kernel, control group, CPUs near a GPU, device files.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};
use rustix::io::Errno;
use thiserror::Error;

use super::files::{field, number_in};
use super::process::fields_of;
use super::{Host, Pid, ProcessHandle, in_path, printable};
use crate::failure::Failure;
use crate::settings::Cpus;

/// The names of MPS programs as the kernel cuts them.
const MPS_PROGRAMS: &str = "nvidia-cuda-mps";

/// The pipe directories that CUDA programs try without settings of their own.
const DEFAULT_PIPE_DIRECTORIES: [&str; 2] = ["tmp/nvidia-mps", "run/nvidia-mps"];

/// The files in its pipe directory that a daemon may leave behind: its sockets, its lock and its process id.
const DAEMON_FILES: [&str; 4] = [
    "control",
    "control_lock",
    "control_privileged",
    "nvidia-cuda-mps-control.pid",
];

/// The files that the shared memory of an MPS server has before driver 580: `mps.shm.<uid>.<pid>`.
const SHARED_MEMORY: &str = "mps.shm.";

/// The files by which container engines mark a container.
const CONTAINER_MARKS: [(&str, &str); 3] = [
    (".dockerenv", "docker"),
    ("run/.containerenv", "podman"),
    ("run/systemd/container", "systemd"),
];

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
pub fn may_open(file: &Path) -> io::Result<bool> {
    match access(file, Access::READ_OK | Access::WRITE_OK) {
        Err(Errno::ACCESS) => Ok(false),
        tried => Ok(tried.map(|()| true)?),
    }
}

/// True if this process may make entries in a directory.
pub fn may_write(directory: &Path) -> bool {
    access(directory, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// Returns the file system that a path is on.
pub fn file_system(path: &Path) -> io::Result<FileSystem> {
    let about = statvfs(path)?;
    Ok(FileSystem {
        free: about.f_bavail.saturating_mul(about.f_frsize),
        is_read_only: about.f_flag.contains(StatVfsMountFlags::RDONLY),
    })
}

impl Host {
    /// Returns the MPS programs that have ended and that nobody has reaped. Process tables leave them out.
    pub fn zombies(&self) -> Vec<Zombie> {
        let proc = self.root.join("proc");
        names_in(&proc)
            .into_iter()
            .filter(|(_, name)| name.parse::<u32>().is_ok())
            .filter_map(|(directory, _)| {
                let stat = fs::read(directory.join("stat")).ok()?;
                let stat = String::from_utf8_lossy(&stat);
                let (pid, name, fields) = fields_of(&stat)?;
                if fields.first() != Some(&"Z") || !name.starts_with(MPS_PROGRAMS) {
                    return None;
                }
                let parent = Pid(fields.get(1)?.parse().ok()?);
                Some(Zombie {
                    pid,
                    parent,
                    is_neglected: reaps(&proc.join(parent.to_string())),
                })
            })
            .collect()
    }

    /// Returns the default pipe directories with files of a daemon, which may have ended.
    pub fn default_directories(&self) -> Vec<PathBuf> {
        DEFAULT_PIPE_DIRECTORIES
            .iter()
            .filter(|path| has_daemon_files(&self.root.join(path)))
            .map(|path| Path::new("/").join(path))
            .collect()
    }

    /// Returns the shared memory of MPS servers that have ended.
    pub fn leftover_memory(&self) -> Vec<PathBuf> {
        let mut leftover: Vec<PathBuf> = names_in(&self.root.join("dev/shm"))
            .into_iter()
            .filter(|(_, name)| user_of_memory(name).is_some_and(|pid| !self.shows(pid)))
            .map(|(_, name)| Path::new("/dev/shm").join(printable(&name)))
            .collect();
        leftover.sort();
        leftover
    }

    /// True if the machine has `NVSwitches`, which the fabric manager must set up.
    pub fn has_nvswitch(&self) -> bool {
        self.root.join("dev/nvidia-nvswitch0").exists()
            || self.root.join("dev/nvidia-nvswitchctl").exists()
    }

    /// Returns the security label of this process, of `SELinux` or `AppArmor`; `None` without either.
    pub fn security_label(&self) -> Option<String> {
        let text = fs::read_to_string(self.root.join("proc/self/attr/current")).ok()?;
        let label = printable(text.trim_matches(['\0', '\n', ' ']));
        (!label.is_empty()).then_some(label)
    }

    /// True if `SELinux` enforces its policy.
    pub fn selinux_enforces(&self) -> bool {
        fs::read_to_string(self.root.join("sys/fs/selinux/enforce"))
            .is_ok_and(|text| text.trim() == "1")
    }

    /// Returns the engine whose container this is.
    pub fn container(&self) -> Option<&'static str> {
        CONTAINER_MARKS
            .into_iter()
            .find(|(mark, _)| self.root.join(mark).exists())
            .map(|(_, engine)| engine)
    }

    /// Returns the names of units that systemd starts at boot: the entries of `*.wants` and `*.requires`.
    pub fn enabled_units(&self) -> Vec<String> {
        names_in(&self.root.join("etc/systemd/system"))
            .into_iter()
            .filter(|(path, _)| {
                let kind = path.extension().and_then(OsStr::to_str);
                matches!(kind, Some("wants" | "requires"))
            })
            .flat_map(|(path, _)| names_in(&path))
            .map(|(_, name)| printable(&name))
            .collect()
    }
}

fn names_in(directory: &Path) -> Vec<(PathBuf, String)> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.path(), entry.file_name().into_string().ok()?)))
        .collect()
}

/// True for an MPS program, which reaps its children, and for the init process of a machine or a container, which reaps
/// those of others.
fn reaps(process: &Path) -> bool {
    process.ends_with("1")
        || field(process.join("status"), "NSpid:")
            .is_some_and(|pids| pids.split_whitespace().last() == Some("1"))
        || fs::read_to_string(process.join("comm")).is_ok_and(|name| name.starts_with(MPS_PROGRAMS))
}

fn has_daemon_files(directory: &Path) -> bool {
    DAEMON_FILES
        .iter()
        .any(|file| fs::symlink_metadata(directory.join(file)).is_ok())
}

/// Returns the process that a file of shared memory is named for.
fn user_of_memory(name: &str) -> Option<Pid> {
    let (_, pid) = name.strip_prefix(SHARED_MEMORY)?.split_once('.')?;
    Some(Pid(pid.split('.').next()?.parse().ok()?))
}

impl Host {
    /// Returns a path of the system below the host's root.
    pub fn below(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns the device node of a capability, such as `/dev/nvidia-caps/nvidia-cap12`, by its file in
    /// `/proc/driver/nvidia/capabilities`; `None` if the driver has no such file.
    pub fn capability_node(&self, capability: &str) -> Option<PathBuf> {
        let directory = self.root.join("proc/driver/nvidia/capabilities");
        let minor: u32 = field(directory.join(capability), "DeviceFileMinor:")?
            .parse()
            .ok()?;
        Some(PathBuf::from(format!("/dev/nvidia-caps/nvidia-cap{minor}")))
    }

    /// Returns the device nodes of a GPU instance and of a compute instance of the GPU with this minor number, by the
    /// driver's table; `None` if the table lacks one.
    pub fn capability_files(
        &self,
        gpu: u32,
        gpu_instance: u32,
        compute: u32,
    ) -> io::Result<Option<[String; 2]>> {
        let table = self.capability_table()?;
        Ok(capability_files(&table, gpu, gpu_instance, compute))
    }

    /// Returns the name of the capability whose device node has that number, such as `gpu0/gi1/ci0/access`.
    pub fn capability_with(&self, minor: u32) -> Option<String> {
        let table = self.capability_table().ok()?;
        let lines = table.lines().filter_map(|line| line.split_once(' '));
        let mut names = lines.filter(|(_, number)| number.trim().parse() == Ok(minor));
        names.next().map(|(name, _)| name.to_owned())
    }

    fn capability_table(&self) -> io::Result<String> {
        fs::read_to_string(self.root.join("proc/driver/nvidia-caps/mig-minors"))
    }
}

/// Each line of the table has the name of a capability and the minor number of its device node.
fn capability_files(table: &str, gpu: u32, gpu_instance: u32, compute: u32) -> Option<[String; 2]> {
    let instance = format!("gpu{gpu}/gi{gpu_instance}");
    let names = [
        format!("{instance}/access"),
        format!("{instance}/ci{compute}/access"),
    ];
    let [of_instance, of_compute] = names.map(|name| {
        table.lines().find_map(|line| {
            let minor: u32 = line.trim().strip_prefix(&name)?.trim().parse().ok()?;
            Some(format!("/dev/nvidia-caps/nvidia-cap{minor}"))
        })
    });
    Some([of_instance?, of_compute?])
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
    pub fn read(root: &Path) -> Self {
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let path = groups.lines().find_map(|line| line.strip_prefix("0::/"));
        let tree = root.join("sys/fs/cgroup");
        let mut least = Self::default();
        for group in Path::new(path.unwrap_or_default()).ancestors() {
            let group = tree.join(group);
            let tasks = number_in(group.join("pids.max")).map(|most| {
                let used = number_in(group.join("pids.current")).unwrap_or(0);
                most.saturating_sub(used)
            });
            let memory = number_in(group.join("memory.max"));
            least.tasks = [least.tasks, tasks].into_iter().flatten().min();
            least.memory = [least.memory, memory].into_iter().flatten().min();
        }
        least
    }
}

/// The kernel lacks a call without which no process can be ended safely, and no child within a limit.
#[derive(Debug, Error)]
#[error("mig-mps needs Linux 5.3 or newer: pidfd_open, which came with it, fails: {0}")]
pub struct OldKernel(Errno);

impl Failure for OldKernel {
    fn hint(&self) -> Option<String> {
        let hint = match self.0 {
            Errno::PERM => {
                "a container's filter of system calls refuses it: update the container engine"
            }
            _ => {
                "uname -r shows the kernel's version; in a container, its filter of system calls may refuse the call"
            }
        };
        Some(hint.to_owned())
    }
}

/// Refuses a kernel before Linux 5.3.
pub fn refuse_old_kernel() -> Result<(), OldKernel> {
    match ProcessHandle::open(Pid(std::process::id())) {
        Err(error @ (Errno::NOSYS | Errno::PERM)) => Err(OldKernel(error)),
        _ => Ok(()),
    }
}

impl Host {
    /// Returns the CPUs that are local to the GPU with this UUID. Fails with the path of what is missing.
    pub fn cpus_near(&self, gpu: &str) -> io::Result<Cpus> {
        let address = self.pci_address(gpu)?;
        let path = self
            .root
            .join(format!("sys/bus/pci/devices/{address}/local_cpulist"));
        let text = fs::read_to_string(&path).map_err(|error| in_path(&path, &error))?;
        text.trim().parse().map_err(|error: String| {
            in_path(&path, &io::Error::new(io::ErrorKind::InvalidData, error))
        })
    }

    /// Returns the PCI address of a GPU, such as `0000:17:00.0`, from the driver's files in `/proc`.
    pub fn pci_address(&self, gpu: &str) -> io::Result<String> {
        let gpus = self.root.join("proc/driver/nvidia/gpus");
        fs::read_dir(&gpus)
            .map_err(|error| in_path(&gpus, &error))?
            .flatten()
            .find(|entry| {
                let uuid = field(entry.path().join("information"), "GPU UUID:");
                uuid.is_some_and(|uuid| uuid == gpu)
            })
            .and_then(|entry| entry.file_name().into_string().ok())
            .ok_or_else(|| {
                let what = format!("{} does not list {gpu}", gpus.display());
                io::Error::new(io::ErrorKind::NotFound, what)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first lines of the file on an H200.
    const TABLE: &str =
        "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\ngpu0/gi0/ci1/access 5\n";

    #[test]
    fn files_are_found_by_the_numbers_of_instances() {
        let files = capability_files(TABLE, 0, 0, 1).unwrap();
        assert_eq!(
            files,
            [
                "/dev/nvidia-caps/nvidia-cap3",
                "/dev/nvidia-caps/nvidia-cap5"
            ]
        );
        assert_eq!(capability_files(TABLE, 0, 0, 2), None);
        assert_eq!(capability_files(TABLE, 1, 0, 0), None);
    }

    #[test]
    fn the_narrowest_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(CgroupRoom::read(root.path()), CgroupRoom::default());
        write("proc/self/cgroup", "0::/a.slice/b.scope\n");
        assert_eq!(CgroupRoom::read(root.path()), CgroupRoom::default());
        write("sys/fs/cgroup/a.slice/pids.max", "100\n");
        write("sys/fs/cgroup/a.slice/pids.current", "90\n");
        write("sys/fs/cgroup/a.slice/b.scope/pids.max", "max\n");
        write("sys/fs/cgroup/a.slice/b.scope/memory.max", "4096\n");
        let left = CgroupRoom {
            tasks: Some(10),
            memory: Some(4096),
        };
        assert_eq!(CgroupRoom::read(root.path()), left);
    }
}
