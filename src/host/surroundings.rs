//! The rest of the machine, as far as MIG and MPS depend on it.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};
use rustix::io::Errno;

use super::cgroup::CgroupRoom;
use super::files::field;
use super::{Host, Pid, printable};

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

/// The machine around GPUs and daemons.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// MPS programs that have ended and that nobody has reaped.
    pub zombies: Vec<Zombie>,
    /// Default pipe directories with files of a daemon, which may have ended.
    pub default_directories: Vec<PathBuf>,
    /// `/dev/shm`; `None` if there is none.
    pub shared_memory: Option<FileSystem>,
    /// Shared memory of MPS servers that have ended.
    pub leftover_memory: Vec<PathBuf>,
    /// True if the machine has `NVSwitches`, which the fabric manager must set up.
    pub has_nvswitch: bool,
    /// The security label of this process, of `SELinux` or `AppArmor`; `None` without either.
    pub label: Option<String>,
    /// True if `SELinux` enforces its policy.
    pub selinux_enforces: bool,
    /// The room in the control group of this process.
    pub cgroup: CgroupRoom,
    /// The engine whose container this is.
    pub container: Option<&'static str>,
    /// The names of units that systemd starts at boot.
    pub enabled_units: Vec<String>,
}

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

impl Surroundings {
    /// Reads what is below the host's root.
    pub fn read(host: &Host) -> Self {
        let root = &host.root;
        let exists = |path: &str| root.join(path).exists();
        let label = fs::read_to_string(root.join("proc/self/attr/current")).ok();
        let label = label.map(|text| printable(text.trim_matches(['\0', '\n', ' '])));
        let marks = CONTAINER_MARKS.into_iter();
        let mut marks = marks.filter(|(mark, _)| exists(mark));
        Self {
            zombies: zombies(&root.join("proc")),
            default_directories: default_directories(root),
            shared_memory: file_system(&root.join("dev/shm")).ok(),
            leftover_memory: leftover_memory(host),
            has_nvswitch: exists("dev/nvidia-nvswitch0") || exists("dev/nvidia-nvswitchctl"),
            label: label.filter(|label| !label.is_empty()),
            selinux_enforces: fs::read_to_string(root.join("sys/fs/selinux/enforce"))
                .is_ok_and(|text| text.trim() == "1"),
            cgroup: CgroupRoom::read(root),
            container: marks.next().map(|(_, engine)| engine),
            enabled_units: enabled_units(&root.join("etc/systemd/system")),
        }
    }
}

fn names_in(directory: &Path) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let named = |entry: fs::DirEntry| Some((entry.path(), entry.file_name().into_string().ok()?));
    entries.filter_map(named).collect()
}

/// Process tables leave zombies out.
fn zombies(proc: &Path) -> Vec<Zombie> {
    let mut zombies = Vec::new();
    for (directory, name) in names_in(proc) {
        let Ok(pid) = name.parse() else { continue };
        let stat = fs::read(directory.join("stat")).unwrap_or_default();
        let stat = String::from_utf8_lossy(&stat);
        let Some((head, tail)) = stat.rsplit_once(')') else {
            continue;
        };
        let name = head.split_once(" (").map_or("", |(_, name)| name);
        let mut fields = tail.split_whitespace();
        let is_zombie = fields.next() == Some("Z") && name.starts_with(MPS_PROGRAMS);
        let parent = fields.next().and_then(|parent| parent.parse().ok());
        if let Some(parent) = parent.filter(|_| is_zombie) {
            zombies.push(Zombie {
                pid: Pid(pid),
                parent: Pid(parent),
                is_neglected: reaps(&proc.join(format!("{parent}"))),
            });
        }
    }
    zombies
}

/// True for an MPS program, which reaps its children, and for the init process of a machine or a container, which reaps
/// those of others.
fn reaps(process: &Path) -> bool {
    let is_init = |pids: String| pids.split_whitespace().last() == Some("1");
    process.ends_with("1")
        || field(process.join("status"), "NSpid:").is_some_and(is_init)
        || fs::read_to_string(process.join("comm")).is_ok_and(|name| name.starts_with(MPS_PROGRAMS))
}

fn default_directories(root: &Path) -> Vec<PathBuf> {
    let directories = DEFAULT_PIPE_DIRECTORIES.iter();
    let exists = |path: PathBuf| fs::symlink_metadata(path).is_ok();
    let is_used = |path: &&&str| {
        let mut files = DAEMON_FILES.iter();
        files.any(|file| exists(root.join(path).join(file)))
    };
    let found = directories.filter(is_used);
    found.map(|path| Path::new("/").join(path)).collect()
}

fn leftover_memory(host: &Host) -> Vec<PathBuf> {
    let is_left = |name: &str| {
        let ids = name.strip_prefix(SHARED_MEMORY)?;
        let (_, pid) = ids.split_once('.')?;
        let pid = pid.split('.').next()?.parse().ok()?;
        (!host.shows(Pid(pid))).then_some(())
    };
    let files = names_in(&host.root.join("dev/shm")).into_iter();
    let mut left: Vec<PathBuf> = files
        .filter(|(_, name)| is_left(name).is_some())
        .map(|(_, name)| Path::new("/dev/shm").join(printable(&name)))
        .collect();
    left.sort();
    left
}

/// The entries of `*.wants` and `*.requires`.
fn enabled_units(directory: &Path) -> Vec<String> {
    let is_list = |path: &Path| {
        let kind = path.extension().and_then(OsStr::to_str);
        matches!(kind, Some("wants" | "requires"))
    };
    let lists = names_in(directory).into_iter();
    let lists = lists.filter(|(path, _)| is_list(path));
    let mut units: Vec<String> = lists
        .flat_map(|(path, _)| names_in(&path))
        .map(|(_, name)| printable(&name))
        .collect();
    units.sort();
    units.dedup();
    units
}

impl Host {
    /// Returns a path of the system below the host's root.
    pub fn below(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns the device node of a capability, such as `/dev/nvidia-caps/nvidia-cap12`, by its file in
    /// `/proc/driver/nvidia/capabilities`; `None` if the driver has no such file.
    pub fn capability_node(&self, capability: &str) -> Option<PathBuf> {
        let directory = self.root.join("proc/driver/nvidia/capabilities");
        let minor = field(directory.join(capability), "DeviceFileMinor:")?;
        let minor: u32 = minor.parse().ok()?;
        Some(PathBuf::from(format!("/dev/nvidia-caps/nvidia-cap{minor}")))
    }
}
