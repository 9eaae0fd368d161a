//! The machine below its root, the directories and programs that the environment names, and the caller.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use signal_hook::consts::{SIGCHLD, SIGXFSZ};
use signal_hook::flag;
use thiserror::Error;

use super::files::read_proc_field;
use super::{
    FileResult, Interrupt, OwnFile, Pid, Process, Uid, caller, host_name, root_hint, user_name,
};
use crate::config::{
    CONTROL_PROGRAM, CUDA_LIBRARY, LOG, LOG_DIR, NVIDIA_SMI_PROGRAM, NVML_LIBRARY, PURGE_LIMIT,
    ROOT, RUN_DIR, SCONTROL_PROGRAM, SERVER_PROGRAM, STATE_DIR, SYSTEM_LOG_DIR, SYSTEM_RUN_DIR,
    SYSTEM_STATE_DIR, SYSTEMCTL_PROGRAM, VARIABLES, nvml_call_limit,
};
use crate::failure::Failure;

/// The search path of programs without `PATH`.
pub(super) const DEFAULT_PATH: &str = "/usr/bin:/bin";

/// The system below one root directory.
#[derive(Clone, Debug)]
pub struct Host {
    pub(super) root: PathBuf,
}

impl Host {
    /// Returns the system whose `/proc` is below `root`.
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// Returns the id of this boot, which identifies state of an earlier boot.
    pub fn boot_id(&self) -> FileResult<String> {
        let id = std::fs::read_to_string(self.root.join("proc/sys/kernel/random/boot_id"))?;
        Ok(id.trim().to_owned())
    }

    /// Returns the profile that is applied at boot.
    pub fn boot_profile(&self) -> OwnFile {
        OwnFile {
            directory: self.under_root("/etc/mig-mps"),
            name: "profile.toml",
            is_mounted: false,
            mode: 0o644,
            is_ours: |_| true,
        }
    }

    /// True if the service that applies that profile is enabled.
    pub fn applies_profile_at_boot(&self) -> bool {
        self.under_root("/etc/systemd/system/multi-user.target.wants/mig-mps.service")
            .is_symlink()
    }

    /// True if the unit of the device plugin is enabled.
    pub fn starts_device_plugin(&self) -> bool {
        let unit = "/etc/systemd/system/multi-user.target.wants/mig-mps-device-plugin.service";
        self.under_root(unit).is_symlink()
    }

    /// True if a device plugin of mig-mps serves the kubelet of this machine, or did: it leaves the file of its lock there.
    pub fn has_device_plugin(&self) -> bool {
        let lock = "/var/lib/kubelet/device-plugins/mig-mps.lock";
        self.starts_device_plugin() || self.under_root(lock).exists()
    }

    /// True if `/proc` has an entry for a process, even for a zombie.
    pub fn has_proc_entry(&self, pid: Pid) -> bool {
        std::fs::read(self.root.join(format!("proc/{pid}/stat"))).is_ok()
    }

    /// Returns a process if it is visible.
    pub fn find_process(&self, pid: Pid) -> Option<Process> {
        Process::from_proc(&self.root.join("proc"), pid)
            .ok()
            .flatten()
    }

    /// Returns the version of the kernel's part of the driver, such as `580.159.04`; `None` if it is hidden.
    pub fn driver_version(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.root.join("proc/driver/nvidia/version")).ok()?;
        text.split_whitespace()
            .find(|word| is_version(word))
            .map(str::to_owned)
    }

    /// True if systemd is the first process, as seen from here.
    pub fn is_run_by_systemd(&self) -> bool {
        let first = std::fs::read_to_string(self.root.join("proc/1/comm"));
        // A container may show the directory of its host, and has another first process.
        first.is_ok_and(|first| first.trim() == "systemd")
            && self.root.join("run/systemd/system").is_dir()
    }

    /// True if the uid and gid of this process are mapped in its user namespace. `cuInit` of a client without a user
    /// hangs, and was seen to keep every later client waiting (measured on an H200).
    pub fn caller_is_mapped(&self) -> bool {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        [("uid_map", uid), ("gid_map", gid)]
            .iter()
            .all(|(file, id)| {
                let map = std::fs::read_to_string(self.root.join("proc/self").join(file));
                // Without user namespaces there is no map.
                map.map_or(true, |map| is_mapped(&map, *id))
            })
    }

    /// Handles SIGCHLD if it is ignored: a process that ignores it loses the exit status of its children. Handles SIGXFSZ,
    /// so that writing too large a file fails and the change is rolled back.
    ///
    /// The handlers do nothing. Programs that this process starts or becomes have the default actions again.
    pub fn reset_signals(&self) -> FileResult<()> {
        // Only if needed: a handler interrupts calls of the driver.
        if self.ignores_signal(SIGCHLD) {
            flag::register(SIGCHLD, Arc::default())?;
        }
        flag::register(SIGXFSZ, Arc::default())?;
        Ok(())
    }

    /// True if this process ignores a signal, according to `/proc/self/status`.
    pub(super) fn ignores_signal(&self, signal: i32) -> bool {
        let mask = read_proc_field(self.root.join("proc/self/status"), "SigIgn:")
            .and_then(|mask| u64::from_str_radix(&mask, 16).ok());
        // Bit 0 is signal 1.
        mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
    }
}

fn is_version(word: &str) -> bool {
    word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok())
}

/// Each line of a map is the first id inside, the first outside, and their number.
fn is_mapped(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let numbers: Vec<u32> = line.split_whitespace().flat_map(str::parse).collect();
        matches!(numbers[..], [first, _, count] if id.checked_sub(first).is_some_and(|at| at < count))
    })
}

/// The environment of this program.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The path of the NVML library, unless the dynamic linker finds it.
    pub nvml_library: Option<PathBuf>,
    /// The same of the CUDA library.
    pub cuda_library: Option<PathBuf>,
    pub host: Host,
    pub caller: Uid,
    pub interrupt: Interrupt,
    /// The time limit of one NVML call of a change.
    pub call_limit: Duration,
    /// The time limit of a purge.
    pub purge_limit: Duration,
    /// `mig-mps` as the helper that runs programs within limits, or as another user.
    pub helper: PathBuf,
    /// The paths in the variables of mig-mps that are set.
    pub(super) set: BTreeMap<&'static str, PathBuf>,
    /// The trace file.
    pub trace: Option<PathBuf>,
    pub(super) path: OsString,
}

/// The run and log directories of daemons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directories {
    pub run: PathBuf,
    pub log: PathBuf,
}

impl Directories {
    fn for_system() -> Self {
        Self {
            run: PathBuf::from(SYSTEM_RUN_DIR),
            log: PathBuf::from(SYSTEM_LOG_DIR),
        }
    }
}

impl Environment {
    /// Reads this process's environment.
    pub fn read() -> Self {
        Self::of(|name| env::var_os(name))
    }

    /// Returns the environment with these variables.
    pub fn of(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        // Daemons and control sessions run in another directory.
        let path = |name| {
            let value = variable(name).filter(|value| !value.is_empty())?;
            std::path::absolute(value).ok()
        };
        Self {
            nvml_library: path(NVML_LIBRARY),
            cuda_library: path(CUDA_LIBRARY),
            host: Host::at(&path(ROOT).unwrap_or_else(|| PathBuf::from("/"))),
            caller: caller(),
            interrupt: Interrupt::default(),
            call_limit: nvml_call_limit(),
            purge_limit: PURGE_LIMIT,
            // Works even if the file was replaced meanwhile.
            helper: PathBuf::from("/proc/self/exe"),
            set: VARIABLES
                .into_iter()
                .filter_map(|(name, _)| Some((name, path(name)?)))
                .collect(),
            trace: path(LOG),
            path: absolute_entries(&variable("PATH").unwrap_or_else(|| DEFAULT_PATH.into())),
        }
    }

    /// Returns the user of an eager server: the caller, or the user who called `sudo`. The first client
    /// of any other user waits until that server is replaced.
    pub fn server_user(&self) -> Uid {
        if !self.is_root() {
            return self.caller;
        }
        let behind_sudo = env::var("SUDO_UID").ok();
        // The highest number is no user: to the kernel it means "as before".
        behind_sudo
            .and_then(|uid| uid.parse().ok().filter(|uid| *uid != u32::MAX))
            .map_or(self.caller, Uid)
    }

    /// Returns the name of the user who called this: with `sudo`, not root's.
    pub fn caller_name(&self) -> String {
        user_name(self.server_user())
    }

    pub fn is_root(&self) -> bool {
        self.caller == Uid::ROOT
    }

    /// Returns the directories that changing commands use. Fails if a plain user's environment names none.
    pub fn directories(&self) -> Result<Directories, EnvironmentError> {
        let run = match (self.set.get(RUN_DIR), self.is_root()) {
            (Some(run), _) => run.clone(),
            (None, true) => PathBuf::from(SYSTEM_RUN_DIR),
            (None, false) => directory_in("XDG_RUNTIME_DIR")
                .ok_or(EnvironmentError::NoRuntimeDir)?
                .join("mig-mps"),
        };
        let log = self.own_logs()?;
        Ok(Directories { run, log })
    }

    /// Returns the variables of mig-mps that name paths, for a process that is to find the same ones.
    pub fn named_paths(&self) -> &BTreeMap<&'static str, PathBuf> {
        &self.set
    }

    /// Returns the environment of daemons that have a directory of their own. Their logs are in it too, unless the caller names
    /// another directory for them.
    #[must_use]
    pub fn with_directory(&self, directory: &Path) -> Self {
        let mut environment = self.clone();
        environment.set.insert(RUN_DIR, directory.to_owned());
        let logs = environment.set.entry(LOG_DIR);
        logs.or_insert_with(|| directory.join("log"));
        environment
    }

    /// Returns the same, or the system's for a user whose environment names none. Only root can write there.
    pub fn directories_or_system(&self) -> Directories {
        self.directories()
            .unwrap_or_else(|_| Directories::for_system())
    }

    fn own_logs(&self) -> Result<PathBuf, EnvironmentError> {
        match (self.set.get(LOG_DIR), self.is_root()) {
            (Some(log), _) => Ok(log.clone()),
            (None, true) => Ok(PathBuf::from(SYSTEM_LOG_DIR)),
            (None, false) => users_state_dir(),
        }
    }

    /// Returns the directory of the profiles that the caller applied here: it outlasts a reboot. Several machines may share
    /// what is in a user's `$HOME`.
    pub fn state_dir(&self) -> Result<PathBuf, EnvironmentError> {
        if self.is_root() || self.set.contains_key(STATE_DIR) {
            return Ok(self.roots_state_dir());
        }
        Ok(users_state_dir()?.join(host_name()))
    }

    /// Returns the state directories that commands read: the caller's, and the system's unless `MIG_MPS_STATE_DIR` is set.
    pub fn state_dirs(&self) -> Vec<PathBuf> {
        let mut dirs: Vec<PathBuf> = self
            .state_dir()
            .ok()
            .into_iter()
            .chain([self.roots_state_dir()])
            .collect();
        dirs.dedup();
        dirs
    }

    fn roots_state_dir(&self) -> PathBuf {
        let set = self.set.get(STATE_DIR).cloned();
        set.unwrap_or_else(|| self.host.under_root(SYSTEM_STATE_DIR))
    }

    /// Returns the log directory that belongs to a run directory, or `None` for another user's.
    pub fn logs_of(&self, run_dir: &Path) -> Option<PathBuf> {
        self.directories()
            .into_iter()
            .chain([Directories::for_system()])
            .find(|directories| directories.run == run_dir)
            .map(|directories| directories.log)
    }

    /// Returns the run directories that commands read: the system's and the caller's, or the one in `MIG_MPS_RUN_DIR`.
    /// Root reads none of a user: a user could write anything there.
    pub fn run_dirs(&self) -> Vec<PathBuf> {
        let own = self.directories().ok().map(|own| own.run);
        let mut dirs: Vec<PathBuf> = [self.roots_run_dir()].into_iter().chain(own).collect();
        dirs.dedup();
        dirs
    }

    /// Returns the run directory of root's commands.
    pub fn roots_run_dir(&self) -> PathBuf {
        let set = self.set.get(RUN_DIR).cloned();
        set.unwrap_or_else(|| SYSTEM_RUN_DIR.into())
    }

    /// Returns the log directories that commands read: the system's and the caller's, or only the caller's if
    /// `MIG_MPS_RUN_DIR` is set.
    pub fn log_dirs(&self) -> Vec<PathBuf> {
        let is_set = self.set.contains_key(RUN_DIR);
        let system = (!is_set).then(|| PathBuf::from(SYSTEM_LOG_DIR));
        let mut dirs: Vec<PathBuf> = system.into_iter().chain(self.own_logs().ok()).collect();
        dirs.dedup();
        dirs
    }
}

/// The absolute entries of a search path. Programs start in `/`, where an empty or a relative entry means another directory.
fn absolute_entries(path: &OsStr) -> OsString {
    let entries = env::split_paths(path).filter(|entry| entry.is_absolute());
    // No entry has a colon.
    env::join_paths(entries).unwrap_or_default()
}

fn directory_in(variable: &str) -> Option<PathBuf> {
    let value = env::var_os(variable).filter(|value| !value.is_empty())?;
    std::path::absolute(value).ok()
}

/// Returns the value of a variable. Bytes that are no text are replaced, so that a value of such bytes is wrong and not
/// missing.
pub fn environment_variable(name: &str) -> Option<String> {
    env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// Returns a plain user's directory for what outlasts a reboot.
fn users_state_dir() -> Result<PathBuf, EnvironmentError> {
    directory_in("XDG_STATE_HOME")
        .or_else(|| Some(directory_in("HOME")?.join(".local/state")))
        .map(|state| state.join("mig-mps"))
        .ok_or(EnvironmentError::NoStateDir)
}

/// A directory or program that the environment lacks.
#[derive(Debug, Error)]
pub enum EnvironmentError {
    /// A plain user has no runtime directory.
    #[error("XDG_RUNTIME_DIR is not set: there is no private directory for this user's daemons")]
    NoRuntimeDir,
    /// A plain user has no directory for what outlasts a reboot.
    #[error(
        "neither XDG_STATE_HOME nor HOME is set: there is no directory for this user's logs and profiles"
    )]
    NoStateDir,
    #[error("{CONTROL_PROGRAM} is not in PATH")]
    NoControlProgram,
    /// The control daemon would not find the server program.
    #[error("{SERVER_PROGRAM} is not in PATH, where {CONTROL_PROGRAM} looks for it")]
    NoServerProgram,
    #[error("{NVIDIA_SMI_PROGRAM}, which resets GPUs, is not in PATH")]
    NoNvidiaSmi,
    /// The system has no systemd, like most containers.
    #[error("{SYSTEMCTL_PROGRAM} is not in PATH")]
    NoSystemctl,
    #[error("{SCONTROL_PROGRAM} is not in PATH, so Slurm cannot be queried")]
    NoScontrol,
    /// A variable names no program.
    #[error("{variable} is {}, but no program is there", path.display())]
    WrongProgram {
        variable: &'static str,
        path: PathBuf,
        /// The error without the variable.
        missing: Box<Self>,
    },
}

/// Returns the advice where a part of the driver is missing on the host and a container has the driver, as with NVIDIA's GPU
/// Operator.
pub fn driver_container_hint() -> Option<&'static str> {
    let root = env::var_os(ROOT).map_or_else(|| PathBuf::from("/"), PathBuf::from);
    root.join("run/nvidia/driver/usr").is_dir().then_some(
        "install the driver on the host, and set driver.enabled=false in NVIDIA's GPU Operator; now the driver is in \
         a container, in /run/nvidia/driver",
    )
}

impl Failure for EnvironmentError {
    fn hint(&self) -> Option<String> {
        let is_of_driver = matches!(
            self,
            Self::NoControlProgram | Self::NoServerProgram | Self::NoNvidiaSmi
        );
        if is_of_driver && let Some(hint) = driver_container_hint() {
            return Some(hint.to_owned());
        }
        let hint = match self {
            Self::NoRuntimeDir => {
                return Some(format!(
                    "{}; for your own daemons, log in through a session that sets XDG_RUNTIME_DIR, or set \
                     MIG_MPS_RUN_DIR",
                    root_hint()
                ));
            }
            Self::NoStateDir => "set HOME or MIG_MPS_LOG_DIR",
            Self::NoControlProgram | Self::NoServerProgram => {
                "install the MPS programs of the NVIDIA driver (Debian: nvidia-cuda-mps), or set MIG_MPS_CONTROL to \
                 the path of the control program"
            }
            Self::NoNvidiaSmi => {
                "install nvidia-smi with the NVIDIA driver, or set MIG_MPS_NVIDIA_SMI to its path"
            }
            Self::NoSystemctl => {
                "set MIG_MPS_SYSTEMCTL to the path of systemctl; without systemd, use the service manager of the system; \
                 in a container, run the command on the host"
            }
            Self::NoScontrol => "install Slurm's client programs (Debian: slurm-client)",
            Self::WrongProgram { missing, .. } => return missing.hint(),
        };
        Some(hint.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_mapped_by_the_line_that_holds_it() {
        assert!(is_mapped("         0          0 4294967295\n", 1000));
        let container = "0 1000 1\n1 100000 65536\n";
        assert!(is_mapped(container, 0) && is_mapped(container, 65536));
        assert!(!is_mapped(container, 65537) && !is_mapped("", 65534));
    }

    #[test]
    fn this_process_is_in_its_family() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let own = Pid(std::process::id());
        let family = Host::at(Path::new("/")).process_family(own).unwrap();
        assert!(family.get(own).is_some());
        assert!(
            family
                .children(own)
                .any(|process| process.pid.0 == child.id())
        );
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
