//! Processes that have a GPU's device node open.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};

use super::process::is_process_gone;
use super::process_table::read_each;
use super::{
    FileError, FileResult, Host, Pid, Process, StartTime, Uid, Unit, Workload, is_service,
    shorten_command, user_name,
};

/// A process that has a GPU open, with a CUDA context or for monitoring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub pid: Pid,
    pub started: StartTime,
    pub user: Option<Uid>,
    pub command: String,
    /// The systemd unit it belongs to: a service, a login session, a container's scope.
    pub unit: Option<String>,
    /// The Slurm job, pod or container it belongs to; `None` if that cannot be seen.
    pub workload: Option<Workload>,
}

/// `pid 4711 (alice, python train.py, session-3.scope)`, `pid 4711 (alice, python train.py, pod default/trainer)`
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {} (", self.pid)?;
        if let Some(user) = self.user {
            write!(f, "{}, ", user_name(user))?;
        }
        f.write_str(&shorten_command(&self.command))?;
        // Their scopes tell nobody whose they are.
        if let Some(workload) = self.workload.as_ref().filter(|workload| workload.is_any()) {
            write!(f, ", {workload}")?;
        } else if let Some(unit) = &self.unit {
            write!(f, ", {unit}")?;
        }
        f.write_str(")")
    }
}

/// The processes that have a GPU open, as far as this process can see.
///
/// The list is never complete: processes outside this container, those that a `/proc` with `hidepid` omits, and the
/// kernel module `nvidia_drm` hold GPUs without an entry here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// The visible processes, by pid.
    pub seen: Vec<Holder>,
    /// The number of processes whose open files are hidden, like other users' from a plain user. Any one may be a holder.
    pub hidden: usize,
}

impl Host {
    /// Returns the device node of the GPU with this minor number (NVML's, which may change with the MIG mode).
    pub fn gpu_node(&self, minor: u32) -> PathBuf {
        self.root.join(format!("dev/nvidia{minor}"))
    }

    /// Finds the other processes that have the GPU with this minor number open, by `/proc/PID/fd`.
    pub fn holders(&self, minor: u32) -> FileResult<Holders> {
        Ok(self.holders_of(&[minor])?.pop().unwrap_or_default())
    }

    /// The same for several GPUs, in one pass.
    pub fn holders_of(&self, minors: &[u32]) -> FileResult<Vec<Holders>> {
        let nodes: Vec<DeviceNode> = minors
            .iter()
            .map(|minor| DeviceNode::from_path(self.gpu_node(*minor)))
            .collect();
        let proc = self.root.join("proc");
        let mut pids = self.list_pids()?;
        pids.retain(|pid| pid.0 != std::process::id());
        let found = read_each(&pids, |pid| find_open_nodes(&proc, pid, &nodes))?;
        let mut all = vec![Holders::default(); nodes.len()];
        for open in found {
            match open {
                OpenNodes::Seen(process, open) => {
                    for (holders, _) in all.iter_mut().zip(open).filter(|(_, is_open)| *is_open) {
                        holders.seen.push(Holder::from_process(&process));
                    }
                }
                OpenNodes::Hidden => all.iter_mut().for_each(|holders| holders.hidden += 1),
            }
        }
        Ok(all)
    }
}

impl Holder {
    /// True if it belongs to a known monitoring service, which `--stop-holders` stops and starts again.
    pub fn is_monitoring(&self) -> bool {
        self.unit.as_deref().and_then(Unit::named).is_some()
    }

    /// True if a service would start it again.
    fn is_of_service(&self) -> bool {
        self.unit.as_deref().is_some_and(is_service)
    }

    /// True for Slurm's daemon on a node.
    pub fn is_slurmd(&self) -> bool {
        let program = self.command.split_whitespace().next();
        program.is_some_and(|program| Path::new(program).ends_with("slurmd"))
    }

    /// Returns what to do about the holders of a GPU. The option that stops services is hinted at only if it was not given.
    pub fn release_hint(holders: &[Self], stops_services: bool) -> &'static str {
        if holders.iter().any(Self::is_slurmd) {
            return "stop slurmd, then run the command again; `mig-mps help slurm` lists the settings with which \
             slurmd keeps GPUs open";
        }
        let known = holders
            .iter()
            .filter(|holder| holder.is_monitoring() && !stops_services);
        match (holders.len(), known.count()) {
            (0, _) => {
                "stop the programs that have the GPU open (containers, the display, nvidia-persistenced), then run \
                 the command again"
            }
            (all, known) if all == known => {
                "use --stop-holders to stop these services during the change"
            }
            (_, 0) if holders.iter().any(Self::is_of_service) => {
                "end these processes (services with `systemctl stop`), then run the command again"
            }
            (_, 0) => "end these processes, then run the command again",
            _ => {
                "end the processes that are not monitoring services, and use --stop-holders to stop the services \
             during the change"
            }
        }
    }

    pub fn from_process(process: &Process) -> Self {
        let groups = process.control_groups();
        Self {
            pid: process.pid,
            started: process.started,
            user: process.owner(),
            command: process.command_line(),
            unit: groups.and_then(|groups| unit_of(&groups)),
            workload: process.find_workload(),
        }
    }
}

/// What is seen of a process's open files.
enum OpenNodes {
    /// It has some of the nodes open: of each whether it has.
    Seen(Process, Vec<bool>),
    /// Its open files are hidden.
    Hidden,
}

/// Finds the nodes that a process has open. Returns `None` if it has none of them, and for a kernel thread.
fn find_open_nodes(proc: &Path, pid: Pid, nodes: &[DeviceNode]) -> FileResult<Option<OpenNodes>> {
    let open = match read_open_nodes(&proc.join(pid.to_string()), nodes) {
        Ok(open) if !open.contains(&true) => return Ok(None),
        Err(error) if is_process_gone(&error) => return Ok(None),
        open => open,
    };
    let process = match Process::from_proc(proc, pid) {
        // What cannot be read may hold the nodes.
        Err(error)
            if error.kind() != io::ErrorKind::PermissionDenied && !is_process_gone(&error) =>
        {
            return Ok(Some(OpenNodes::Hidden));
        }
        process => process?.filter(|process| !process.is_kernel),
    };
    Ok(process.map(|process| match open {
        Ok(open) => OpenNodes::Seen(process, open),
        Err(_) => OpenNodes::Hidden,
    }))
}

/// Tells of each node whether the process with this directory has it open.
fn read_open_nodes(process: &Path, nodes: &[DeviceNode]) -> FileResult<Vec<bool>> {
    let mut open = vec![false; nodes.len()];
    for entry in fs::read_dir(process.join("fd"))? {
        let file = entry?.path();
        match fs::read_link(&file).map_err(FileError::from) {
            Ok(target) => {
                for (node, is_open) in nodes.iter().zip(&mut open) {
                    *is_open = *is_open || node.matches_file(&target, &file);
                }
            }
            // Closed meanwhile.
            Err(error) if is_process_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(open)
}

/// A GPU's device node.
struct DeviceNode {
    path: PathBuf,
    /// The device number, which is the same for the node in a container; `None` if the path is no device.
    number: Option<(u32, u32)>,
}

impl DeviceNode {
    fn from_path(path: PathBuf) -> Self {
        let number = device_number(&path);
        Self { path, number }
    }

    fn matches_file(&self, target: &Path, file: &Path) -> bool {
        let name = node_name(target);
        // The name first: following a link to a file on a dead server would hang.
        if name.is_none() || name != node_name(&self.path) {
            return false;
        }
        target == self.path || (self.number.is_some() && device_number(file) == self.number)
    }
}

/// Returns the name of a device node, also of a removed one: it still refers to the GPU.
fn node_name(path: &Path) -> Option<&str> {
    Some(path.file_name()?.to_str()?.trim_end_matches(" (deleted)"))
}

/// Returns the number of a device. Uses the kernel's cached data, because a file on a dead server would hang.
fn device_number(path: &Path) -> Option<(u32, u32)> {
    let flags = AtFlags::STATX_DONT_SYNC;
    let meta = statx(CWD, path, flags, StatxFlags::BASIC_STATS).ok()?;
    let kind = FileType::from_raw_mode(meta.stx_mode.into());
    (kind == FileType::CharacterDevice).then_some((meta.stx_rdev_major, meta.stx_rdev_minor))
}

/// Returns the unit in `/proc/PID/cgroup`: the first part of its path that is no slice.
pub(super) fn unit_of(cgroup: &str) -> Option<String> {
    let unit = path_of_systemd(cgroup)?
        .split('/')
        .find(|part| !part.is_empty() && *part != ".." && unit_type(part) != Some("slice"))?;
    let is_unit = matches!(unit_type(unit), Some("service" | "scope"));
    // A user can choose the name of a cgroup, which must not control the terminal.
    (is_unit && !unit.contains(char::is_control)).then(|| unit.to_owned())
}

/// Returns the path in the hierarchy of systemd: `0::` in version 2 and `name=systemd` in version 1.
fn path_of_systemd(cgroup: &str) -> Option<&str> {
    cgroup
        .lines()
        .find_map(|line| line.split_once(':')?.1.strip_prefix("name=systemd:"))
        .or_else(|| cgroup.lines().find_map(|line| line.strip_prefix("0::")))
}

/// Returns the user and the service of a process that a user's own systemd runs, below `user@1000.service`.
pub(super) fn service_of_user(cgroup: &str) -> Option<(Uid, String)> {
    let (_, below) = path_of_systemd(cgroup)?.split_once("/user@")?;
    let (user, below) = below.split_once(".service/")?;
    let service = below.split('/').find(|part| is_service(part))?;
    Some((Uid(user.parse().ok()?), service.to_owned()))
}

fn unit_type(unit: &str) -> Option<&str> {
    Some(unit.rsplit_once('.')?.1)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn the_unit_is_read_from_either_version_of_cgroups() {
        let unit = |text: &str| unit_of(text);
        assert_eq!(
            unit("0::/system.slice/nvidia-dcgm.service\n").as_deref(),
            Some("nvidia-dcgm.service")
        );
        let version_1 = "12:devices:/docker/ab\n1:name=systemd:/system.slice/nvsm.service\n0::/\n";
        assert_eq!(unit(version_1).as_deref(), Some("nvsm.service"));
        let session = "0::/user.slice/user-1000.slice/session-3.scope\n";
        assert_eq!(unit(session).as_deref(), Some("session-3.scope"));
        let nested = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/a.service\n";
        assert_eq!(unit(nested).as_deref(), Some("user@1000.service"));
        let in_unit = "0::/system.slice/nvidia-dcgm.service/workers\n";
        assert_eq!(unit(in_unit).as_deref(), Some("nvidia-dcgm.service"));
        for none in [
            "",
            "0::/\n",
            "0::/docker/abc\n",
            "0::/system.slice/\u{1b}.service\n",
        ] {
            assert_eq!(unit(none), None, "{none}");
        }
    }

    /// A root directory with devices and processes.
    struct Machine {
        root: PathBuf,
    }

    impl Machine {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("mig-mps-{name}-{}", std::process::id()));
            fs::create_dir_all(root.join("dev")).unwrap();
            fs::write(root.join("dev/nvidia0"), "").unwrap();
            fs::write(root.join("dev/nvidia01"), "").unwrap();
            Self { root }
        }

        fn process(&self, pid: u32, flags: u32, opened: &[&Path]) -> PathBuf {
            let process = self.root.join(format!("proc/{pid}"));
            fs::create_dir_all(process.join("fd")).unwrap();
            let stat =
                format!("{pid} (python) S 1 1 1 0 -1 {flags} 1 0 0 0 0 0 0 0 20 0 1 0 77 0 0");
            fs::write(process.join("stat"), stat).unwrap();
            fs::write(process.join("cmdline"), "python\0train.py\0").unwrap();
            fs::write(process.join("cgroup"), "0::/user.slice/session-3.scope\n").unwrap();
            for (fd, path) in opened.iter().enumerate() {
                symlink(path, process.join(format!("fd/{fd}"))).unwrap();
            }
            process
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.root);
        }
    }

    #[test]
    fn only_processes_that_have_the_gpu_open_are_found() {
        let machine = Machine::new("holders");
        let host = Host::at(&machine.root);
        let node = host.gpu_node(0);
        let other = machine.root.join("dev/nvidia01");
        let deleted = PathBuf::from(format!("{} (deleted)", node.display()));
        let null = Path::new("/dev/null");
        machine.process(41, 0, &[null, &node]);
        machine.process(42, 0, &[null, &other, Path::new("socket:[7]")]);
        machine.process(43, 0, &[&deleted]);
        machine.process(44, 0, &[Path::new("/srv/alice/nvidia0")]);
        machine.process(std::process::id(), 0, &[&node]);
        let holders = host.holders(0).unwrap();
        let pids: Vec<_> = holders.seen.iter().map(|holder| holder.pid.0).collect();
        assert_eq!((pids, holders.hidden), (vec![41], 0));
        let holder = &holders.seen[0];
        assert_eq!(holder.started, StartTime(77));
        let user = user_name(holder.user.unwrap());
        assert_eq!(
            holder.to_string(),
            format!("pid 41 ({user}, python train.py, session-3.scope)")
        );
        assert!(host.holders(1).unwrap().seen.is_empty());
    }

    /// A container has device nodes of its own, and a node may be removed while it is open: the device number decides.
    #[test]
    fn a_device_is_known_by_its_number() {
        let null = DeviceNode::from_path("/dev/null".into());
        assert!(null.number.is_some());
        let elsewhere = Path::new("/container/dev/null");
        assert!(null.matches_file(elsewhere, Path::new("/dev/null")));
        assert!(!null.matches_file(elsewhere, Path::new("/dev/zero")));
        assert!(!null.matches_file(Path::new("/dev/zero"), Path::new("/dev/zero")));
        assert!(null.matches_file(Path::new("/dev/null (deleted)"), Path::new("/dev/null")));
    }

    #[test]
    fn hidden_processes_are_counted_and_kernel_threads_are_not() {
        let machine = Machine::new("hidden");
        let hidden = machine.process(41, 0, &[]);
        let thread = machine.process(2, 0x0020_0000, &[]);
        let ended = machine.process(43, 0, &[]);
        for process in [&hidden, &thread, &ended] {
            fs::remove_dir(process.join("fd")).unwrap();
        }
        // Not even root can list a file, so it stands for a refused listing for every user.
        for process in [&hidden, &thread] {
            fs::write(process.join("fd"), "").unwrap();
            fs::set_permissions(process.join("fd"), fs::Permissions::from_mode(0o000)).unwrap();
        }
        let holders = Host::at(&machine.root).holders(0).unwrap();
        assert_eq!((holders.seen.len(), holders.hidden), (0, 1));
    }
}
